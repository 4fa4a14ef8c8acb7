package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"writegate/eventlog"
	"writegate/eventlog/frame"
	"writegate/projections"
)

// projected is what projections know of a log: how far they folded it.
type projected struct {
	anchor *frame.Anchor // nil: nothing
	said   []string      // why they could not be asked
}

// projectedIn asks the projections in a folder, before the log's files are opened: what
// a gate that comes writes is then no surprise. Those that a gate has open are left out,
// since they are never ahead of its log.
func projectedIn(dir string) (p projected) {
	applied, err := projections.Peek(dir)
	switch {
	case errors.Is(err, syscall.EAGAIN): // of their lock
	case err != nil:
		p.said = append(p.said, fmt.Sprintf("the projections in %s can't be read, so what they know of the log is not counted: %v", dir, err))
	case applied.Seq > 0:
		p.anchor = &frame.Anchor{Level: frame.L2, LogID: applied.LogID, Seq: applied.Seq, Hash: applied.Hash, Source: "projections"}
	}
	return p
}

// of gives the anchor for the log of a set. Projections of another log know nothing of it.
func (p projected) of(set *frame.Set) (anchors []frame.Anchor, warnings []string) {
	if p.anchor == nil {
		return nil, p.said
	}
	if h, err := set.Genesis(); err == nil && h.LogID != p.anchor.LogID {
		return nil, append(p.said, fmt.Sprintf("the projections are of log %x, not of this one: no start takes both", p.anchor.LogID))
	}
	return []frame.Anchor{*p.anchor}, p.said
}

// projectedOf is projectedIn for the log at a path, where it is the one of the settings.
func (a *app) projectedOf(path string) projected {
	s, err := a.settingsFor()
	if err != nil {
		return projected{} // a log is verified without settings as well
	}
	own, err1 := frame.OS{}.RealPath(s.AuditWALPath)
	asked, err2 := frame.OS{}.RealPath(path)
	if err1 != nil || err2 != nil || own != asked {
		return projected{}
	}
	return projectedIn(s.ApprovalDBPath)
}

// A withProjections is what is known of a log, and what its projections know.
type withProjections struct {
	eventlog.Outside
	projected
}

// Anchors implements eventlog.Outside.
func (w withProjections) Anchors(ctx context.Context, set *frame.Set) ([]frame.Anchor, []string, error) {
	more, said := w.of(set)
	anchors, warnings, err := w.Outside.Anchors(ctx, set)
	return append(anchors, more...), append(warnings, said...), err
}

// ownOf is besideOf, and of the log of the settings what its projections know as well.
func (s *settings) ownOf(wal string) (eventlog.Outside, error) {
	known, err := s.besideOf(wal)
	if err != nil || wal != s.AuditWALPath {
		return known, err
	}
	return withProjections{known, projectedIn(s.ApprovalDBPath)}, nil
}

// projectionsBeside is where the projections of a log lie that was moved away with all
// that stood beside it: as the settings have it from there, or under their name.
func (s *settings) projectionsBeside(wal string) (string, error) {
	from, err := filepath.Abs(filepath.Dir(s.AuditWALPath))
	if err != nil {
		return "", err
	}
	store, err := filepath.Abs(s.ApprovalDBPath)
	if err != nil {
		return "", err
	}
	name, err := filepath.Rel(from, store)
	if err != nil {
		return "", err
	}
	there := filepath.Join(filepath.Dir(wal), name)
	if _, err := os.Stat(there); err == nil {
		return there, nil
	}
	return filepath.Join(filepath.Dir(wal), filepath.Base(store)), nil
}
