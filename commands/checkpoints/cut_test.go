package checkpoints

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"writegate/eventlog"
	"writegate/eventlog/frame"
)

// TestNoLogThatWasCutIsServed cuts a log of some segments at random, and rolls
// back or removes everything else of its host: head file, projections, and
// either the notes or what the witness is told. What is left knows of more than
// the log has, so no such log is served. CHECKPOINT_CUTS sets how many cuts;
// `make verifiers` makes 10,000 of each kind.
func TestNoLogThatWasCutIsServed(t *testing.T) {
	cuts := 40
	if asked := os.Getenv("CHECKPOINT_CUTS"); asked != "" {
		var err error
		cuts, err = strconv.Atoi(asked)
		require.NoError(t, err)
	}
	h := newHost(t)
	h.witness()
	h.segments = 16 << 10
	r := h.start()
	for range 12 {
		r.grow(20 + rand.IntN(20))
		r.sign()
	}
	require.Greater(t, r.log.Head().Segment, uint32(1))
	vouched := r.known().Size
	r.end()

	for _, keeps := range []string{"notes", "witness"} {
		t.Run("the "+keeps, func(t *testing.T) {
			for range cuts {
				one := *h
				one.t = t
				if keeps == "notes" {
					one.witnesses = nil
				}
				cut := one.moved(func(path string) bool {
					return filepath.Ext(path) == ".wal" || keeps == "notes" && filepath.Ext(path) == ".note"
				})
				cut.cut(rand.Int64N(cut.bytes()))
				r := cut.open()
				if seq := r.log.Head().Seq; seq >= vouched {
					r.end()
					continue // only what came after the last checkpoint was cut
				}
				require.ErrorIs(t, r.log.Serving(), eventlog.ErrCorrupt, "cut to %d bytes, %d of %d events", cut.bytes(), r.log.Head().Seq, vouched)
				r.end()
				require.NoError(t, os.RemoveAll(cut.dir))
			}
		})
	}
}

// files are the segments of the log in their order.
func (h *host) files() []string {
	sealed, err := filepath.Glob(h.wal() + frame.SegmentsSuffix + "/*.wal")
	require.NoError(h.t, err)
	files := append(sealed, h.wal())
	if _, err := os.Stat(h.wal()); err != nil {
		return sealed
	}
	return files
}

func (h *host) bytes() (n int64) {
	for _, file := range h.files() {
		info, err := os.Stat(file)
		require.NoError(h.t, err)
		n += info.Size()
	}
	return n
}

// cut leaves the first n bytes of the log, at a frame's border or not. What was
// the last segment then is the active one, as if there had been no later one.
func (h *host) cut(n int64) {
	files := h.files()
	last := -1
	for i, file := range files {
		info, err := os.Stat(file)
		require.NoError(h.t, err)
		if n <= 0 {
			require.NoError(h.t, os.Remove(file))
			continue
		}
		if info.Size() > n {
			require.NoError(h.t, os.Truncate(file, n))
		}
		n -= info.Size()
		last = i
	}
	if last >= 0 && files[last] != h.wal() {
		require.NoError(h.t, os.Rename(files[last], h.wal()))
	}
}
