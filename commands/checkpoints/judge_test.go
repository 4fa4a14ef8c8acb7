package checkpoints

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"writegate/eventlog"
	"writegate/eventlog/checkpoint"
	"writegate/eventlog/event"
	"writegate/eventlog/frame"
	"writegate/projections"
)

func TestOfVeryManyNotesTheNewestAndOneOfEachSegmentAreJudged(t *testing.T) {
	var list []checkpoint.Stored
	for size := range uint64(5000) {
		list = append(list, checkpoint.Stored{Segment: uint32(size / 700), Size: size})
	}
	some := representative(list)
	require.Len(t, some, judgedNotes+5)
	require.Equal(t, list[4000:], some[5:])
	for i, s := range some[:5] {
		require.EqualValues(t, i*700+699, s.Size)
	}
	require.Equal(t, list[:judgedNotes], representative(list[:judgedNotes]))
	require.Empty(t, representative(nil))
}

// What can't be read in the folder of the notes.
var unreadable = map[string]func(t *testing.T, path string, honest []byte){
	"empty": func(t *testing.T, path string, _ []byte) { require.NoError(t, os.WriteFile(path, nil, 0o600)) },
	"no note": func(t *testing.T, path string, _ []byte) {
		require.NoError(t, os.WriteFile(path, []byte("damaged\n"), 0o600))
	},
	"a folder":     func(t *testing.T, path string, _ []byte) { require.NoError(t, os.Mkdir(path, 0o700)) },
	"another size": func(t *testing.T, path string, honest []byte) { require.NoError(t, os.WriteFile(path, honest, 0o600)) },
	"cut": func(t *testing.T, path string, honest []byte) {
		require.NoError(t, os.WriteFile(path, honest[:len(honest)-9], 0o600))
	},
}

// spoil lays something behind the newest note that can't be read.
func (h *host) spoil(t *testing.T, how func(t *testing.T, path string, honest []byte)) {
	t.Helper()
	list, err := h.folder().List()
	require.NoError(t, err)
	newest := list[len(list)-1].Path
	honest, err := os.ReadFile(newest)
	require.NoError(t, err)
	how(t, filepath.Join(filepath.Dir(newest), "00000000000000999999.note"), honest)
}

// rolledBack is a host whose log was set back; the notes are those of before or of after.
func rolledBack(t *testing.T, notes bool) *host {
	h := newHost(t)
	h.witness()
	r := h.start()
	r.grow(5)
	r.stop()
	older := h.moved(all)
	r = h.start()
	r.grow(5)
	r.stop()
	if notes {
		require.NoError(t, os.RemoveAll(older.wal()+frame.CheckpointsSuffix))
		require.NoError(t, os.CopyFS(older.wal()+frame.CheckpointsSuffix, os.DirFS(h.wal()+frame.CheckpointsSuffix)))
	}
	return older
}

func TestANoteThatCantBeReadHidesNoneBeforeIt(t *testing.T) {
	for name, how := range unreadable {
		t.Run(name, func(t *testing.T) {
			for _, signs := range []bool{true, false} {
				h := rolledBack(t, true)
				h.witnesses, h.signs = nil, signs
				h.spoil(t, how)
				r := h.open()
				r.requireAccused(frame.AnchorBeyondEnd)
				r.end()
			}
		})
	}
}

func TestANoteThatCantBeReadKeepsNoWitnessFromBeingAsked(t *testing.T) {
	for name, how := range unreadable {
		t.Run(name, func(t *testing.T) {
			h := rolledBack(t, false)
			h.spoil(t, how)
			before := h.lastSeq()
			r := h.open()
			r.requireAccused(frame.AnchorBeyondEnd)
			require.True(t, r.Status().Witnesses[0].Conflict)
			require.Equal(t, before, r.log.Head().Seq, "nothing was appended")
			r.end()
		})
	}
	t.Run("nor one that knows nothing against it", func(t *testing.T) {
		h := newHost(t)
		h.witness()
		r := h.start()
		r.grow(5)
		r.stop()
		h.spoil(t, unreadable["empty"])
		r = h.start()
		require.NoError(t, r.log.Serving())
		require.Contains(t, r.Status().Failure, "move the file away")
		require.Empty(t, r.Status().Witnesses[0].Message)
		report, err := r.log.Verify(t.Context())
		require.NoError(t, err)
		require.NotContains(t, strings.Join(report.NotExcluded, "\n"), "witness")
		r.stop()
	})
	t.Run("nor a folder that takes none", func(t *testing.T) {
		h := rolledBack(t, false)
		require.NoError(t, os.RemoveAll(h.wal()+frame.CheckpointsSuffix))
		require.NoError(t, os.MkdirAll(h.wal()+frame.CheckpointsSuffix, 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(h.wal()+frame.CheckpointsSuffix, "000000"), nil, 0o600))
		r := h.open()
		r.requireAccused(frame.AnchorBeyondEnd)
		r.end()
	})
	t.Run("nor one that was out of reach at the start", func(t *testing.T) {
		h := rolledBack(t, false)
		h.set = func(o *Options) { o.Every = 20 * time.Millisecond }
		h.spoil(t, unreadable["empty"])
		w := h.witnesses[0]
		h.witnesses = nil
		r := h.start()
		c, err := checkpoint.NewWitness(w.URL, []string{w.VKey}, nil)
		require.NoError(t, err)
		r.o.Witnesses, r.asked = []*checkpoint.Witness{c}, make([]asked, 1)
		halt := r.running()
		require.Eventually(t, func() bool { return r.log.Serving() != nil }, patience, time.Millisecond)
		halt()
		r.requireAccused(frame.AnchorBeyondEnd)
		r.end()
	})
}

// takesNone moves the notes to where no new one is laid, and makes their folder take none.
func (h *host) takesNone(t *testing.T) {
	t.Helper()
	notes := h.wal() + frame.CheckpointsSuffix
	require.NoError(t, os.Rename(filepath.Join(notes, "000000"), filepath.Join(notes, "000005")))
	require.NoError(t, os.WriteFile(filepath.Join(notes, "000000"), nil, 0o600))
}

// A witness is asked by a checkpoint that is signed for it: the newest one at hand may be
// of a key that it does not know, or have lines that it does not take.
func TestAWitnessIsAskedByACheckpointThatItTakes(t *testing.T) {
	t.Run("of another key", func(t *testing.T) {
		h := newHost(t)
		r := h.start()
		r.grow(5)
		r.stop()
		older := h.moved(all)
		key, err := checkpoint.NewPrivateKey()
		require.NoError(t, err)
		h.key = key
		h.witness()
		r = h.start()
		r.grow(5)
		r.stop()
		older.key, older.witnesses = h.key, h.witnesses
		older.takesNone(t)
		r = older.open()
		r.requireAccused(frame.AnchorBeyondEnd)
		r.end()
	})
	t.Run("with lines of strangers", func(t *testing.T) {
		for _, none := range []bool{false, true} {
			h := rolledBack(t, false)
			list, err := h.folder().List()
			require.NoError(t, err)
			newest := list[len(list)-1].Path
			note, err := os.ReadFile(newest)
			require.NoError(t, err)
			const room = 700
			for i := 0; len(note) < checkpoint.MaxNote-1; i++ {
				n := min(room, checkpoint.MaxNote-1-len(note))
				if rest := checkpoint.MaxNote - 1 - len(note) - n; rest > 0 && rest < 100 {
					n += rest
				}
				signature := base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{byte(i)}, 30))
				name := fmt.Sprintf("— j%02d", i)
				note = fmt.Appendf(note, "%s%s %s\n", name, strings.Repeat("x", n-len(name)-len(signature)-2), signature)
			}
			require.Len(t, note, checkpoint.MaxNote-1)
			require.NoError(t, os.WriteFile(newest, note, 0o600))
			if none {
				h.takesNone(t)
			}
			_, err = checkpoint.Open(note, checkpoint.Keys{Log: []checkpoint.PublicKey{h.key.Public()}})
			require.NoError(t, err, "it can be read")
			r := h.open()
			r.requireAccused(frame.AnchorBeyondEnd)
			r.end()
		}
	})
}

func TestAReportSaysOfWhichNotesItDoesNotKnow(t *testing.T) {
	h := newHost(t)
	r := h.start()
	r.grow(3)
	r.stop()
	list, err := h.folder().List()
	require.NoError(t, err)
	for size := range judgedNotes + 5 {
		require.NoError(t, os.WriteFile(filepath.Join(filepath.Dir(list[0].Path), fmt.Sprintf("%020d.note", 1000+size)), nil, 0o600))
	}
	require.NoError(t, unix.Mkfifo(filepath.Join(filepath.Dir(list[0].Path), "1.note"), 0o600))
	r = h.open()
	defer r.end()
	report, err := r.log.Verify(t.Context())
	require.NoError(t, err)
	require.Contains(t, strings.Join(report.NotExcluded, "\n"), fmt.Sprintf("%d of the %d checkpoints in the folder were not compared", len(list)+5, len(list)+5+judgedNotes))
	require.Contains(t, strings.Join(report.NotExcluded, "\n"), "1 of the notes in the folder had names that no gate gives")
}

// treeOf is a store with the tree of a host's log.
func (h *host) treeOf(t *testing.T) *projections.Store {
	t.Helper()
	alone := *h
	alone.witnesses = nil
	r := alone.open()
	defer r.end()
	store, err := projections.Open(projections.Options{Dir: "of", FS: vfs.NewMem()})
	require.NoError(t, err)
	t.Cleanup(func() { _ = store.Close() })
	require.NoError(t, store.Connect(t.Context(), r.log))
	return store
}

// Whoever puts a log back can put the projections beside it that he likes: a witness is
// asked about the files.
func TestAWitnessIsAskedAboutTheLogAndNotAboutTheProjections(t *testing.T) {
	for name, mode := range map[string]string{"active": eventlog.VerifyActive, "full": eventlog.VerifyFull} {
		t.Run(name, func(t *testing.T) {
			for _, of := range []*host{rolledBack(t, false), forked(t, witnessed(t))} {
				k := New(Options{Folder: of.folder(), Key: of.key, Witnesses: of.clients()})
				log, _, err := eventlog.Open(t.Context(), eventlog.Options{Path: of.wal(), Origin: origin, SigningKey: of.key, VerifyOnStart: mode, Outside: k.Papers})
				require.NoError(t, err)
				require.ErrorIs(t, log.Serving(), eventlog.ErrCorrupt, "before there are projections")
				require.NoError(t, log.Close(t.Context()))
			}
		})
	}
	t.Run("also one that was out of reach at the start", func(t *testing.T) {
		h := newHost(t)
		h.witness()
		other := forked(t, h)
		clients := other.clients()
		other.witnesses, other.set = nil, func(o *Options) { o.Every = 20 * time.Millisecond }
		r := other.start()
		honest := r.store
		r.o.Witnesses, r.asked = clients, make([]asked, 1)
		r.Keeper.store = h.treeOf(t) // what the witness knows
		r.newest = nil
		halt := r.running()
		require.Eventually(t, func() bool { return r.log.Serving() != nil }, patience, time.Millisecond)
		halt()
		r.Keeper.store = honest
		r.requireAccused(frame.HistoryRewritten)
		r.end()
	})
}

// witnessed is a host with one witness.
func witnessed(t *testing.T) *host {
	h := newHost(t)
	h.witness()
	return h
}

func TestProjectionsWithATreeOfOtherEventsAreSignedNoMore(t *testing.T) {
	h := newHost(t)
	h.witness()
	r := h.start()
	r.grow(5)
	r.stop()
	other := h.moved(all)
	other.witnesses = nil
	r = other.start()
	r.grow(50)
	r.end()
	r = h.start() // another history from here on, which the witness knows
	r.grow(9)
	r.stop()
	notes := h.sizes()

	r = h.open()
	r.Keeper.store = other.treeOf(t)
	_, ok, err := r.Judge(t.Context())
	require.ErrorIs(t, err, ErrOtherTree)
	require.False(t, ok)
	require.NoError(t, r.log.Serving(), "the log is what the witness knows")
	require.False(t, r.can())
	require.Contains(t, r.Status().Failure, "other events")
	view := r.Keeper.store.View()
	r.newest = nil
	_, err = r.make(view)
	require.ErrorIs(t, errors.Join(err, view.Close()), ErrOtherTree, "nor is it signed by who asks while the gate runs")
	r.end()
	require.Equal(t, notes, h.sizes())
}

// A log that is begun under the name of one before it has nothing that its witness knows,
// whatever lies in its folders; a forged one may name an honest one as the log before it.
func TestALogUnderTheNameOfTheOneBeforeItIsAccusedByItsWitness(t *testing.T) {
	for _, longer := range []bool{false, true} {
		h := newHost(t)
		h.witness()
		r := h.start()
		r.grow(5)
		r.stop()
		_, err := eventlog.Retire(t.Context(), eventlog.Options{Path: h.wal(), Origin: origin, SigningKey: h.key}, eventlog.Successor{Reason: "test", Mode: "enforce", Start: event.Startup{Version: "0.6.0"}})
		require.NoError(t, err)
		if longer {
			alone := *h
			alone.witnesses = nil
			r = alone.start()
			r.grow(50)
			r.end()
		}
		require.NoError(t, os.MkdirAll(filepath.Join(h.wal()+frame.CheckpointsSuffix, "000000"), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(h.wal()+frame.CheckpointsSuffix, "000000", "00000000000000999999.note"), nil, 0o600))
		r = h.open()
		require.ErrorIs(t, r.log.Serving(), eventlog.ErrCorrupt)
		r.end()

		report, err := eventlog.Verify(t.Context(), eventlog.Options{Path: h.wal(), Outside: New(Options{Folder: h.folder(), Key: h.key, Witnesses: h.clients(), Stopped: true}).Papers})
		require.NoError(t, err)
		require.Contains(t, strings.Join(report.Warnings, "\n"), "give each log an origin of its own", "who looks at it is told why")
		require.NotEqual(t, frame.Corruption, report.Status)
	}
}

// openBatch makes what follows an event one batch without its end: whoever reads its frames meets them all
// whole and linked, and a start discards them.
func (h *host) openBatch(t *testing.T, keep uint64) {
	t.Helper()
	f, err := (frame.OS{}).Open(h.wal(), frame.ReadWrite)
	require.NoError(t, err)
	defer f.Close()
	size, err := f.Size()
	require.NoError(t, err)
	var tail []frame.Placed
	for p, err := range frame.Scan(t.Context(), f, frame.HeaderSize, size) {
		require.NoError(t, err)
		if p.Seq > keep {
			p.Record = bytes.Clone(p.Record)
			tail = append(tail, p)
		}
	}
	require.NotEmpty(t, tail)
	raw, err := os.ReadFile(h.wal())
	require.NoError(t, err)
	for i, p := range tail {
		p.Flags, p.BatchLeft, p.DurableOff = 0, uint16(len(tail)-i), uint64(tail[0].Off)
		b := frame.Append(nil, &p.Frame)
		require.Len(t, b, int(p.Size))
		copy(raw[p.Off:], b)
	}
	require.NoError(t, os.WriteFile(h.wal(), raw, 0o600))
	require.NoError(t, os.Remove(h.wal()+frame.HeadSuffix))
	require.NoError(t, os.RemoveAll(h.wal()+frame.CheckpointsSuffix))
}

// What a witness knows has to be in the log that goes on, and not behind its end.
func TestAnUnfinishedBatchIsNothingThatAWitnessKnows(t *testing.T) {
	for _, mode := range []string{eventlog.VerifyActive, eventlog.VerifyFull} {
		h := witnessed(t)
		r := h.start()
		r.grow(20)
		r.stop()
		h.openBatch(t, 6)
		k := New(Options{Folder: h.folder(), Key: h.key, Witnesses: h.clients()})
		log, _, err := eventlog.Open(t.Context(), eventlog.Options{Path: h.wal(), Origin: origin, SigningKey: h.key, VerifyOnStart: mode, Outside: k.Papers})
		require.NoError(t, err)
		require.ErrorIs(t, log.Serving(), eventlog.ErrCorrupt)
		require.True(t, k.Status().Witnesses[0].Conflict)
		require.NoError(t, log.Close(t.Context()))
	}
}

// through has the clients of a host's witness go through a proxy that calls before each
// request, with how many there were.
func (h *host) through(before func(n int)) []*checkpoint.Witness {
	target, err := url.Parse(h.witnesses[0].URL)
	require.NoError(h.t, err)
	on, n := httputil.NewSingleHostReverseProxy(target), 0
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n++
		before(n)
		on.ServeHTTP(w, r)
	}))
	h.t.Cleanup(proxy.Close)
	c, err := checkpoint.NewWitness(proxy.URL, []string{h.witnesses[0].VKey}, nil)
	require.NoError(h.t, err)
	return []*checkpoint.Witness{c}
}

// A copy that is longer than the original, and is asked about while the original goes on
// signing, never meets a witness that stands still: that alone says that there are two.
func TestAWitnessThatAnotherGateMovesAccuses(t *testing.T) {
	for _, mode := range []string{eventlog.VerifyActive, eventlog.VerifyFull} {
		h := witnessed(t)
		r := h.start()
		r.grow(5)
		r.stop()
		other := h.moved(all)
		other.witnesses = nil
		r = other.start()
		r.grow(100)
		r.end()
		original := h.start()
		clients := h.through(func(int) { original.grow(1); original.sign() })
		k := New(Options{Folder: other.folder(), Key: h.key, Witnesses: clients})
		log, _, err := eventlog.Open(t.Context(), eventlog.Options{Path: other.wal(), Origin: origin, SigningKey: h.key, VerifyOnStart: mode, Outside: k.Papers})
		require.NoError(t, err)
		require.Greater(t, log.Head().Seq, original.log.Head().Seq, "the witness never knows more than the copy has")
		require.ErrorIs(t, log.Serving(), eventlog.ErrCorrupt)
		require.True(t, k.Status().Witnesses[0].Conflict)
		require.ErrorIs(t, k.asked[0].err, errAnotherGate)
		require.NoError(t, log.Close(t.Context()))
		original.end()
	}
}

// What the process before this one has offered may arrive late.
func TestAnOfferThatComesLateAccusesNobody(t *testing.T) {
	h := witnessed(t)
	r := h.start()
	r.grow(5)
	r.sign()
	r.grow(20)
	set, err := r.log.Files()
	require.NoError(t, err)
	k := New(Options{Folder: h.folder(), Key: h.key, Witnesses: h.through(func(n int) {
		if n == 2 {
			r.sign()
		}
	})})
	said, err := k.ask(t.Context(), &set)
	require.NoError(t, errors.Join(err, set.Close()))
	require.Empty(t, said)
	require.True(t, k.asked[0].heard)
	require.False(t, k.Status().Witnesses[0].Conflict)
	require.Len(t, k.vouched, 1)
	r.stop()
}

// A witness may tell an old size, and know better where it compares.
func TestAWitnessThatTellsAnOldSizeAccusesNobody(t *testing.T) {
	h := witnessed(t)
	r := h.start()
	r.grow(5)
	r.sign()
	r.grow(20)
	r.sign()
	set, err := r.log.Files()
	require.NoError(t, err)
	target, err := url.Parse(h.witnesses[0].URL)
	require.NoError(t, err)
	on, first := httputil.NewSingleHostReverseProxy(target), true
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !first {
			on.ServeHTTP(w, r)
			return
		}
		first = false
		w.Header().Set("Content-Type", "text/x.tlog.size")
		w.WriteHeader(http.StatusConflict)
		_, _ = io.WriteString(w, "3\n")
	}))
	defer proxy.Close()
	c, err := checkpoint.NewWitness(proxy.URL, []string{h.witnesses[0].VKey}, nil)
	require.NoError(t, err)
	k := New(Options{Folder: h.folder(), Key: h.key, Witnesses: []*checkpoint.Witness{c}})
	said, err := k.ask(t.Context(), &set)
	require.NoError(t, errors.Join(err, set.Close()))
	require.Empty(t, said)
	require.True(t, k.asked[0].heard, "%v", k.asked[0].err)
	require.Len(t, k.vouched, 1)
	r.stop()
}

// A tree of other events that is found while the gate runs is offered to nobody: the
// witness would accuse the log, which is honest. Where the projections can't be waited for
// the first time, they are held against the log the next time.
func TestATreeOfOtherEventsIsOfferedToNobody(t *testing.T) {
	h := witnessed(t)
	r := h.start()
	r.grow(5)
	r.stop()
	other := h.moved(all)
	other.witnesses = nil
	r = other.start()
	r.grow(10)
	r.end()
	short := other.treeOf(t)
	r = other.start()
	r.grow(200)
	r.end()
	long := other.treeOf(t)
	r = h.start()
	r.grow(9)
	r.stop()

	clients := h.clients()
	h.witnesses = nil
	r = h.start()
	honest := r.store
	r.grow(60)
	r.o.Witnesses, r.asked = clients, make([]asked, 1)
	r.Keeper.store = short
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	r.askLive(ctx)
	cancel()
	require.Empty(t, r.unheard())
	require.False(t, r.otherTree, "it ends before the log")
	r.Keeper.store = long
	r.askLive(t.Context())
	require.True(t, r.otherTree)
	view := long.View()
	n, err := r.signer.Sign(view.Tree(), view.Tree().Size(), nil)
	require.NoError(t, err)
	r.offer(t.Context(), view, n)
	require.NoError(t, view.Close())
	require.NoError(t, r.log.Serving())
	require.False(t, r.Status().Witnesses[0].Conflict)
	r.Keeper.store = honest
	r.end()
}
