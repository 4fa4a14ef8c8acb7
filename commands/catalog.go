package commands

import (
	"context"
	"slices"

	"writegate/eventlog"
	"writegate/eventlog/event"
	"writegate/projections"
)

// A large snapshot is kept in events, and appended in groups, well below the limits of the log:
// other commands wait while one is written.
const (
	catalogPart  = 512 << 10
	catalogGroup = 4
)

// KeptCatalog finds the snapshot of the database's catalogues with a hash among those that the
// log keeps.
func (c *Commands) KeptCatalog(ctx context.Context, hash [32]byte) (s projections.CatalogSnapshot, ok bool, err error) {
	err = c.look(ctx, func(view *projections.View) (err error) {
		s, ok, err = view.CatalogSnapshot(hash)
		return err
	})
	return s, ok, err
}

// RecordCatalog keeps a snapshot of the database's catalogues, packed, whole or as the
// difference to base. It is durable when this returns, and decisions may name it.
func (c *Commands) RecordCatalog(ctx context.Context, hash, base [32]byte, packed []byte) error {
	parts := slices.Collect(slices.Chunk(packed, catalogPart))
	var drafts []event.Draft
	for i, content := range parts {
		drafts = append(drafts, event.New(c.now(), event.Context{Actor: systemActor, Operation: "read_catalog"},
			&event.CatalogRecorded{Base: base, Content: content, Hash: hash, Part: i + 1, Parts: len(parts)}))
	}
	for group := range slices.Chunk(drafts, catalogGroup) {
		if _, err := c.commit(ctx, eventlog.Group{Drafts: group}); err != nil {
			return err
		}
	}
	return nil
}
