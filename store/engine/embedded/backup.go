package embedded

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// Backup implements engine.Engine. Where it can it links tables instead of
// copying them, so a copy on the same disk is quick and shares their fate:
// move it to another disk.
func (e *Engine) Backup(ctx context.Context, dir string) error {
	if err := e.backup(ctx, dir); err != nil {
		return fmt.Errorf("back up to %s: %w", dir, err)
	}
	return nil
}

func (e *Engine) backup(ctx context.Context, dir string) (err error) {
	if err := ctx.Err(); err != nil {
		return err
	}
	if vfs.Root(e.disk) == vfs.Default {
		if dir, err = filepath.Abs(dir); err != nil {
			return err
		}
	}
	inst, err := e.use()
	if err != nil {
		return err
	}
	defer e.life.RUnlock()
	if f := inst.guard.fault(); f != nil {
		return f
	}
	if inst.guard.inside(dir) {
		return errors.New("the copy would lie inside the store")
	}
	if exists(e.disk, dir) {
		return errors.New("it exists already")
	}
	defer func() {
		if err != nil {
			_ = e.disk.RemoveAll(dir)
		}
	}()
	// The copy says "new" until it is whole, so that half of one is never
	// taken for a store.
	if err := makeFolder(e.disk, dir); err != nil {
		return err
	}
	if err := writeFile(e.disk, dir, formatName, []byte(formatTextNew)); err != nil {
		return err
	}
	database := e.disk.PathJoin(dir, databaseName)
	err = inst.guard.call(func() error { return checkpoint(inst.db, database) })
	if err != nil {
		return err
	}
	parts, err := takeInventory(e.disk, database)
	if err != nil {
		return err
	}
	if err := parts.saveLocked(e.disk, dir); err != nil {
		return err
	}
	return writeFile(e.disk, dir, formatName, []byte(formatText))
}

// checkpoint copies the database. Pebble panics when it cannot sync the
// copy's folder, which is no harm to the database itself.
func checkpoint(db *pebble.DB, database string) (err error) {
	defer func() {
		switch r := recover().(type) {
		case nil:
		case error:
			err = fmt.Errorf("checkpoint: %w", r)
		default:
			panic(r)
		}
	}()
	return db.Checkpoint(database, pebble.WithFlushedWAL())
}
