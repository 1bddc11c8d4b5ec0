package deployment

import (
	"fmt"
	"maps"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
)

// rollbackTo is the revision that the deployment is asked to go back to, where 0
// means the last one before this. Compat: an annotation, which clients of the
// API before apps/v1 set through a subresource.
func rollbackTo(d *appsv1.Deployment) (revision int64, asked bool) {
	revision, err := strconv.ParseInt(d.Annotations[appsv1.DeprecatedRollbackTo], 10, 64)
	return revision, err == nil
}

// rollBack plans the return to an older template, when one is asked for. The
// wish is taken off in any case.
func (s *scope) rollBack() bool {
	revision, asked := rollbackTo(s.deployment)
	if !asked {
		return false
	}
	d := s.Deployment.DeepCopy()
	delete(d.Annotations, appsv1.DeprecatedRollbackTo)
	s.plan.Spec = d
	s.changed = nil // the sets are looked at when the wish is gone
	if revision == 0 {
		if revision = s.last(); revision == 0 {
			s.tell(corev1.EventTypeWarning, "DeploymentRollbackRevisionNotFound", "Unable to find last revision.")
			return true
		}
	}
	for _, set := range s.Sets {
		if r, ok := revisionOf(set); !ok || r != revision {
			continue
		}
		if sameTemplate(&d.Spec.Template, &set.Spec.Template) {
			s.tell(corev1.EventTypeWarning, "DeploymentRollbackTemplateUnchanged", fmt.Sprintf("The rollback revision contains the same template as current deployment %q", d.Name))
			return true
		}
		restore(d, set)
		s.tell(corev1.EventTypeNormal, "DeploymentRollback", fmt.Sprintf("Rolled back deployment %q to revision %d", d.Name, revision))
		return true
	}
	s.tell(corev1.EventTypeWarning, "DeploymentRollbackRevisionNotFound", "Unable to find the revision to rollback to.")
	return true
}

func (s *scope) tell(of, reason, message string) {
	s.plan.Events = append(s.plan.Events, Event{of, reason, message})
}

// last is the second highest revision, 0 when there is none.
func (s *scope) last() int64 {
	first, second := int64(0), int64(0)
	for _, set := range s.Sets {
		r, ok := revisionOf(set)
		switch {
		case !ok:
		case r >= first:
			first, second = r, first
		case r > second:
			second = r
		}
	}
	return second
}

// restore gives the deployment the set's template, and the annotations that the
// deployment had with it.
func restore(d *appsv1.Deployment, set *appsv1.ReplicaSet) {
	set = set.DeepCopy()
	d.Spec.Template = *withoutHash(&set.Spec.Template)
	maps.DeleteFunc(d.Annotations, func(key, _ string) bool { return !private[key] })
	for key, value := range set.Annotations {
		if !private[key] {
			d.Annotations[key] = value
		}
	}
}
