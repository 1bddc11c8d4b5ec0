package rest

import (
	"context"
	"errors"
	"time"

	"setpoint.dev/setpoint/kinds"
	"setpoint.dev/setpoint/store"
)

// repairRounds is how often plan is asked again within a pass, which ends when it
// has no more to say: what was removed in one round may be made anew in the
// next.
const repairRounds = 3

// Repair carries out what plan says of the present, now and then every interval,
// until ctx ends. Each fix is a commit of its own, and is left to the next pass
// when somebody else was faster. A pass is made only when one of the tables has
// changed since the last, or when that one said to wait or failed, which is told
// of.
func (h *Handler) Repair(ctx context.Context, interval time.Duration, tables []string,
	plan func(ctx context.Context, stored kinds.Reader, now time.Time) (fixes []kinds.Companion, wait bool, err error), failed func(error),
) error {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	again, seen := true, store.Revision(0)
	for {
		sn, err := h.Store.Snapshot(h.Plane)
		if err != nil {
			return err
		}
		if again || lastChange(sn, tables) > seen {
			seen = sn.Rev()
			if again, err = h.repair(ctx, plan); err != nil && ctx.Err() == nil {
				again = true
				failed(err)
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

func lastChange(sn *store.Snapshot, tables []string) (last store.Revision) {
	for _, table := range tables {
		last = max(last, sn.LastChange(table))
	}
	return last
}

// repair is one pass; again says that it has to be made again although nothing
// changes.
func (h *Handler) repair(ctx context.Context, plan func(context.Context, kinds.Reader, time.Time) ([]kinds.Companion, bool, error)) (again bool, err error) {
	for range repairRounds {
		sn, err := h.Store.Snapshot(h.Plane)
		if err != nil {
			return true, err
		}
		fixes, wait, err := plan(ctx, reader{sn}, time.Now())
		if err != nil || len(fixes) == 0 {
			return wait, err
		}
		ops, err := h.along(h.Plane, fixes)
		if err != nil {
			return true, err
		}
		var errs []error
		for _, op := range ops {
			if op.Delete {
				have, err := sn.Get(ctx, op.Resource, op.Key)
				if err != nil || have == nil {
					errs = append(errs, err)
					continue
				}
				op.If = store.At(have.Rev)
			}
			if _, err := h.Store.Commit(ctx, store.Provenance{User: "system:apiserver", Verb: "repair", FieldManager: serverManager}, op); err != nil && !isConflict(err) {
				errs = append(errs, err)
			}
		}
		if err := errors.Join(errs...); err != nil {
			return true, err
		}
	}
	return true, nil
}
