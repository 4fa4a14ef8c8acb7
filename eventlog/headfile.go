package eventlog

import (
	"errors"
	"io/fs"
	"log/slog"
	"sync"
	"time"

	"writegate/eventlog/frame"
)

// headSyncEvery is the distance of two syncs of the head file: what a power cut
// may take from anchor L1.
const headSyncEvery = time.Second

// headFile writes anchor L1. Its errors are told and stop nothing: the anchor
// then lies behind the log, which weakens it and accuses nobody.
type headFile struct {
	file   frame.File
	logID  [16]byte
	logger *slog.Logger

	mu      sync.Mutex
	counter uint64
	slot    [frame.SlotSize]byte // that is written
	dirty   bool
	failed  bool // told once
}

// openHead opens the head file for writing, or makes a new one where there is
// none. last is its newest readable slot, the zero Head where there is none.
func openHead(o *Options, w string, logID [16]byte, last frame.Head) (*headFile, error) {
	if err := noLog(o.FS, w+frame.HeadSuffix); err != nil {
		return nil, err
	}
	f, err := o.FS.Open(w+frame.HeadSuffix, frame.ReadWrite)
	if errors.Is(err, fs.ErrNotExist) {
		if f, err = o.FS.Create(w + frame.HeadSuffix); err == nil {
			err = o.FS.SyncDir(parent(w))
		}
	}
	if err != nil {
		return nil, err
	}
	return &headFile{file: f, logID: logID, logger: o.Logger, counter: last.Counter}, nil
}

// write puts the head into the other slot, without a sync.
func (h *headFile) write(at Head, clean bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.put(at, clean); err != nil && !h.failed {
		h.failed = true
		h.logger.Error("the head file can't be written; anchor L1 stays behind the log", "error", err)
	}
}

func (h *headFile) put(at Head, clean bool) error {
	h.counter++
	slot := frame.Head{
		LogID: h.logID, Seq: at.Seq, EventHash: at.Hash, Segment: at.Segment, Clean: clean,
		EndOff: uint64(at.Offset), Time: at.Time, Counter: h.counter,
	}
	h.dirty = true
	slot.Put(h.slot[:])
	_, err := h.file.Pwrite(h.slot[:], frame.Slot(h.counter))
	return err
}

// writeSynced is write and a sync: at open, where the clean mark has to be gone
// before anything else happens, and at close, where it is set.
func (h *headFile) writeSynced(at Head, clean bool) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.put(at, clean); err != nil {
		return err
	}
	h.dirty = false
	return h.file.Sync()
}

// keepSynced syncs the head each second while there is something new in it.
func (h *headFile) keepSynced(stop <-chan struct{}) {
	tick := time.NewTicker(headSyncEvery)
	defer tick.Stop()
	for {
		select {
		case <-stop:
			return
		case <-tick.C:
			h.syncIfDirty()
		}
	}
}

func (h *headFile) syncIfDirty() {
	h.mu.Lock()
	dirty := h.dirty
	h.dirty = false
	h.mu.Unlock()
	if !dirty {
		return
	}
	if err := h.file.Datasync(); err != nil {
		h.logger.Error("the head file can't be synced; anchor L1 may be lost in a power cut", "error", err)
	}
}
