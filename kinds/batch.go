package kinds

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/registry/rest"
	_ "k8s.io/kubernetes/pkg/apis/batch/install" // into the scheme
	"k8s.io/kubernetes/pkg/registry/batch/cronjob"
	"k8s.io/kubernetes/pkg/registry/batch/job"
)

func batchGroup() group {
	return group{name: "batch", versions: []string{"v1"}, rows: []row{
		{
			name: "cronjobs", kind: "CronJob", short: "cj", category: "all",
			strategy: cronjob.Strategy, status: cronjob.StatusStrategy,
		},
		{
			name: "jobs", kind: "Job", category: "all",
			strategy: job.Strategy, attrs: job.GetAttrs, status: job.StatusStrategy, checkDelete: warnOfPodsLeft,
		},
	}}
}

// warnOfPodsLeft warns who deletes jobs and does not say what is to become of
// their pods.
func warnOfPodsLeft(ctx context.Context, _ string, opts *metav1.DeleteOptions) (string, error) {
	//nolint:staticcheck // Compat: clients still say it with OrphanDependents.
	if opts == nil || opts.PropagationPolicy != nil || opts.OrphanDependents != nil ||
		job.Strategy.DefaultGarbageCollectionPolicy(ctx) != rest.OrphanDependents {
		return "", nil
	}
	return "child pods are preserved by default when jobs are deleted; set propagationPolicy=Background to remove them or set propagationPolicy=Orphan to suppress this warning", nil
}
