package frame

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"io/fs"
	"time"
)

// SlotSize is the distance of the two slots of a head file. A slot is one page,
// so a torn write harms one slot only.
const SlotSize = 4096

const (
	headMagic = "GATEHEAD"
	headLen   = 100
	headClean = 1
)

// ErrNoHead says that no slot of a head file is readable.
var ErrNoHead = errors.New("head file: no readable slot")

// A Head is anchor level 1: what the writer knew to be durable, in a file of
// its own. It is not signed; it shows careless cuts and a file system that went
// back in time.
type Head struct {
	LogID     [16]byte
	Seq       uint64   // last durable event; 0 before the first
	EventHash [32]byte // its hash; the header_hash of segment 0 before the first
	Segment   uint32   // where it lies
	Clean     bool     // the log was closed, nothing follows
	EndOff    uint64   // end of its batch in that segment
	Time      time.Time
	Counter   uint64 // grows by one with each slot written; the higher one wins
}

// Slot is the offset in the head file where the head with this counter goes.
func Slot(counter uint64) int64 { return int64(counter%2) * SlotSize }

// Encode gives the SlotSize bytes of a slot.
func (h Head) Encode() []byte {
	b := make([]byte, SlotSize)
	h.Put(b)
	return b
}

// Put writes a slot over b, whose bytes behind what a head takes are zero.
//
//	 0  magic 8 | log_id 16 | seq 8 | event_hash 32
//	64  segment 4 | flags 4 | end_off 8 | time_ns 8 | counter 8 | CRC32C 4
func (h Head) Put(b []byte) {
	le := binary.LittleEndian
	copy(b, headMagic)
	copy(b[8:], h.LogID[:])
	le.PutUint64(b[24:], h.Seq)
	copy(b[32:], h.EventHash[:])
	le.PutUint32(b[64:], h.Segment)
	flags := uint32(0)
	if h.Clean {
		flags = headClean
	}
	le.PutUint32(b[68:], flags)
	le.PutUint64(b[72:], h.EndOff)
	le.PutUint64(b[80:], uint64(h.Time.UnixNano()))
	le.PutUint64(b[88:], h.Counter)
	le.PutUint32(b[96:], crc32.Checksum(b[:96], castagnoli))
}

// ParseHead reads one slot. Bytes after the sum are not looked at.
func ParseHead(b []byte) (Head, error) {
	le := binary.LittleEndian
	if len(b) < headLen || string(b[:8]) != headMagic || le.Uint32(b[96:]) != crc32.Checksum(b[:96], castagnoli) {
		return Head{}, ErrNoHead
	}
	if le.Uint32(b[68:])&^headClean != 0 {
		return Head{}, ErrNoHead
	}
	return Head{
		LogID:     [16]byte(b[8:]),
		Seq:       le.Uint64(b[24:]),
		EventHash: [32]byte(b[32:]),
		Segment:   le.Uint32(b[64:]),
		Clean:     le.Uint32(b[68:]) == headClean,
		EndOff:    le.Uint64(b[72:]),
		Time:      time.Unix(0, int64(le.Uint64(b[80:]))).UTC(),
		Counter:   le.Uint64(b[88:]),
	}, nil
}

// ReadHead gives the newer readable slot of a head file. A missing file is
// io/fs.ErrNotExist; ErrNoHead says that the file is there but tells nothing.
func ReadHead(fsys FS, name string) (Head, error) {
	f, err := fsys.Open(name, ReadOnly)
	if err != nil {
		return Head{}, err
	}
	h, err := ReadHeadFile(f)
	return h, errors.Join(err, f.Close())
}

// MarkHead sets or takes away the clean mark of a head file that nobody writes, synced.
// A file that is missing, or tells nothing, stays as it is.
func MarkHead(fsys FS, name string, clean bool) (err error) {
	f, err := fsys.Open(name, ReadWrite)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	h, err := ReadHeadFile(f)
	if errors.Is(err, ErrNoHead) || err == nil && h.Clean == clean {
		return nil
	}
	if err != nil {
		return err
	}
	h.Clean = clean
	h.Counter++
	if _, err := f.Pwrite(h.Encode(), Slot(h.Counter)); err != nil {
		return err
	}
	return f.Sync()
}

// ReadHeadFile is ReadHead for an open file.
//
// Beside a writer a slot may be seen half written, and the other one may have
// been read so long before that it is older than what was durable when this
// began. So a torn slot is read again until it is whole, or no longer changes.
func ReadHeadFile(f File) (Head, error) {
	var before []byte
	for {
		b := make([]byte, 2*SlotSize)
		n, err := f.Pread(b, 0)
		if err != nil && err != io.EOF {
			return Head{}, err
		}
		h, torn, err := newestSlot(b[:n])
		if !torn || bytes.Equal(b, before) {
			return h, err
		}
		before = b
		time.Sleep(tornPause)
	}
}

// tornPause is more than the write of one slot takes.
const tornPause = 50 * time.Microsecond

// newestSlot tells as well whether a slot that holds something is not readable.
func newestSlot(b []byte) (newest Head, torn bool, err error) {
	err = ErrNoHead
	for slot := range 2 {
		from, to := min(len(b), slot*SlotSize), min(len(b), (slot+1)*SlotSize)
		switch h, bad := ParseHead(b[from:to]); {
		case bad != nil:
			torn = torn || !allZero(b[from:to])
		case err != nil || h.Counter > newest.Counter:
			newest, err = h, nil
		}
	}
	return newest, torn, err
}
