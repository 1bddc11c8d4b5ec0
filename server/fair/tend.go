package fair

import (
	"context"
	"errors"
	"slices"
	"time"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap"
	informers "k8s.io/client-go/informers/flowcontrol/v1"
	"k8s.io/kubernetes/pkg/registry/flowcontrol/ensurer"
)

// tendEvery is how often it is looked whether schemas and levels are there that
// have to be. Compat: as upstream.
const tendEvery = time.Minute

// tend makes and mends upstream's schemas and levels until ctx ends: those that
// have to be there, and those that are suggested where nobody has made them his
// own. An empty store begins with them, so that there is seldom something to do.
func (g *Gate) tend(ctx context.Context, of informers.Interface) {
	tick := time.NewTicker(tendEvery)
	defer tick.Stop()
	for {
		if err := g.ensure(ctx, of); err != nil && ctx.Err() == nil {
			g.logger.Warn("flow schemas and priority levels are not as they have to be", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (g *Gate) ensure(ctx context.Context, of informers.Interface) error {
	levels := ensurer.NewPriorityLevelConfigurationOps(g.client.FlowcontrolV1().PriorityLevelConfigurations(), of.PriorityLevelConfigurations().Lister())
	schemas := ensurer.NewFlowSchemaOps(g.client.FlowcontrolV1().FlowSchemas(), of.FlowSchemas().Lister())
	return errors.Join(
		ensurer.EnsureConfigurations(ctx, levels, bootstrap.SuggestedPriorityLevelConfigurations, ensurer.NewSuggestedEnsureStrategy[*flowcontrolv1.PriorityLevelConfiguration]()),
		ensurer.EnsureConfigurations(ctx, levels, bootstrap.MandatoryPriorityLevelConfigurations, ensurer.NewMandatoryEnsureStrategy[*flowcontrolv1.PriorityLevelConfiguration]()),
		ensurer.EnsureConfigurations(ctx, schemas, bootstrap.SuggestedFlowSchemas, ensurer.NewSuggestedEnsureStrategy[*flowcontrolv1.FlowSchema]()),
		ensurer.EnsureConfigurations(ctx, schemas, bootstrap.MandatoryFlowSchemas, ensurer.NewMandatoryEnsureStrategy[*flowcontrolv1.FlowSchema]()),
		ensurer.RemoveUnwantedObjects(ctx, schemas, slices.Concat(bootstrap.MandatoryFlowSchemas, bootstrap.SuggestedFlowSchemas)),
		ensurer.RemoveUnwantedObjects(ctx, levels, slices.Concat(bootstrap.MandatoryPriorityLevelConfigurations, bootstrap.SuggestedPriorityLevelConfigurations)),
	)
}
