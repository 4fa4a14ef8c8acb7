package checkpoints

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"writegate/commands/fault"
	"writegate/eventlog/checkpoint"
	"writegate/eventlog/event"
	"writegate/eventlog/frame"
	"writegate/projections"
)

// patience bounds what a test waits for: a bound for what hangs, no measurement.
const patience = 30 * time.Second

func TestANoteIsStoredThenNamedThenOffered(t *testing.T) {
	h := newHost(t)
	h.witness()
	var passed []string
	var r *run
	h.set = func(o *Options) {
		o.Step = func(name string) {
			passed = append(passed, name)
			switch {
			case r == nil:
			case name == "checkpoint.signed":
				require.NotContains(t, h.sizes(), r.log.Head().Seq, "nothing is stored yet")
			case name == "checkpoint.stored":
				require.Contains(t, h.sizes(), r.log.Head().Seq)
				for _, c := range r.named() {
					require.NotEqual(t, r.log.Head().Seq, c.Size, "nothing is named yet")
				}
			}
		}
	}
	r = h.start()
	r.grow(3)
	passed = nil
	n := r.sign()
	require.Equal(t, []string{"checkpoint.signed", "checkpoint.stored", "checkpoint.recorded", "checkpoint.offered", "checkpoint.cosigned"}, passed)
	require.Len(t, n.Cosignatures, 1)
	list := r.named()
	require.Equal(t, event.CheckpointSigned{Size: n.Size, Root: n.Root}, list[len(list)-1])

	stored, err := h.folder().Newest(checkpoint.Keys{Log: []checkpoint.PublicKey{h.key.Public()}, Witnesses: []string{h.witnesses[0].VKey}})
	require.NoError(t, err)
	require.Equal(t, string(n.Raw), string(stored.Raw), "cosignatures are kept")
	r.stop()
}

func TestACheckpointIsDueAfterEventsOrTimeAndNeverForItsOwnEvent(t *testing.T) {
	h := newHost(t)
	h.set = func(o *Options) { o.EveryEvents, o.Every = 10, time.Minute }
	r := h.start()
	due := func() bool { return r.due(h.clock.Now()) }
	r.sign()
	require.False(t, due(), "there is nothing to vouch for but the event that names the last one")
	h.clock.Advance(time.Hour)
	require.False(t, due(), "and time changes nothing about that")
	r.grow(1)
	require.True(t, due(), "an hour is longer than a minute")
	r.sign()
	r.grow(9)
	require.False(t, due())
	r.grow(1)
	require.True(t, due(), "ten events are enough at once")
	r.sign()
	r.grow(1)
	h.clock.Advance(time.Minute - 1)
	require.False(t, due())
	h.clock.Advance(1)
	require.True(t, due())
	r.stop()
}

func TestACleanEndIsVouchedForAndNamedByTheNextStart(t *testing.T) {
	h := newHost(t)
	w := h.witness()
	r := h.start()
	r.grow(5)
	r.stop()
	end := h.sizes()[len(h.sizes())-1]
	r = h.start()
	require.True(t, r.fits)
	require.Equal(t, event.Anchor{Level: "L4", Result: "match", Seq: end}, r.anchor)
	list := r.named()
	require.Equal(t, end, list[len(list)-1].Size)
	require.EqualValues(t, end+2, r.log.Head().Seq, "startup and the event that names the last note")
	require.Zero(t, r.Status().SignedAt, "the newest note is of the run before")
	r.sign()
	require.Equal(t, h.clock.Now(), r.Status().SignedAt)
	r.stop()

	w.Stop(t)
	r = h.start() // nobody is there to be asked
	r.stop()
	require.Equal(t, len(h.sizes()), int(h.notesThatFit()), "every note fits the log")
}

// notesThatFit verifies the log against its notes and counts those that match.
func (h *host) notesThatFit() (n int) {
	r := h.open()
	defer r.end()
	report, err := r.log.Verify(context.Background())
	require.NoError(h.t, err)
	require.Equal(h.t, frame.OK, report.Status, "%+v", report.Faults)
	for _, a := range report.Anchors {
		if a.Level == frame.L4 && a.Result == frame.AnchorMatch {
			n++
		}
	}
	return n
}

func TestALogThatEndsBeforeAKeptNoteIsAccused(t *testing.T) {
	h := newHost(t)
	r := h.start()
	r.grow(5)
	r.end()
	older := h.moved(func(path string) bool { return !strings.HasSuffix(path, ".note") })
	r = h.start()
	r.grow(5)
	r.sign()
	r.end()
	for _, signs := range []bool{true, false} {
		rolledBack := h.moved(func(path string) bool { return strings.HasSuffix(path, ".note") })
		for _, name := range []string{"audit.wal", "audit.wal.head"} {
			content, err := os.ReadFile(filepath.Join(older.dir, name))
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(filepath.Join(rolledBack.dir, name), content, 0o600))
		}
		rolledBack.signs = signs
		r = rolledBack.open()
		r.requireAccused(frame.AnchorBeyondEnd)
		require.False(t, r.fits)
		r.end()
	}
}

// forked is a host that was rolled back and went on, with the notes of both.
func forked(t *testing.T, h *host) *host {
	r := h.start()
	r.grow(5)
	r.end()
	other := h.moved(func(path string) bool { return !strings.HasSuffix(path, ".note") })
	other.witnesses = nil
	r = h.start()
	r.grow(5)
	r.sign()
	r.end()
	r = other.start()
	r.grow(50)
	r.end()
	other.witnesses = h.witnesses
	return other
}

func TestALogWithOtherEventsThanAKeptNoteIsAccused(t *testing.T) {
	h := newHost(t)
	other := forked(t, h)
	require.NoError(t, os.RemoveAll(other.wal()+frame.CheckpointsSuffix))
	require.NoError(t, os.CopyFS(other.wal()+frame.CheckpointsSuffix, os.DirFS(h.wal()+frame.CheckpointsSuffix)))
	r := other.open()
	r.requireAccused(frame.HistoryRewritten)
	r.end()
}

func TestAWitnessThatSawAnotherHistoryAccusesTheLog(t *testing.T) {
	h := newHost(t)
	h.witness()
	other := forked(t, h)
	before := other.lastSeq()
	r := other.open()
	r.requireAccused(frame.HistoryRewritten)
	require.True(t, r.Status().Witnesses[0].Conflict)
	require.Equal(t, before, r.log.Head().Seq, "nothing was appended")
	r.end()
}

// lastSeq is where the log ends.
func (h *host) lastSeq() uint64 {
	alone := *h
	alone.witnesses, alone.signs = nil, false
	r := alone.open()
	defer r.end()
	return r.log.Head().Seq
}

func TestAWitnessAccusesALogThatIsAlreadyServed(t *testing.T) {
	h := newHost(t)
	h.witness()
	other := forked(t, h)
	w := other.witnesses
	other.witnesses = nil
	r := other.start()
	c, err := checkpoint.NewWitness(w[0].URL, []string{w[0].VKey}, nil)
	require.NoError(t, err)
	r.o.Witnesses, r.asked = []*checkpoint.Witness{c}, make([]asked, 1)
	r.grow(1)
	r.sign()
	r.requireAccused(frame.HistoryRewritten)
	require.False(t, r.due(h.clock.Now().Add(time.Hour)), "what is accused is not signed")
	_, err = r.checkpoint(context.Background())
	require.Error(t, err)
	_, err = r.Checkpoint(t.Context(), 1)
	require.Equal(t, fault.AuditCorruptionDetected, fault.CodeOf(err))
	r.end()
}

func TestANewLogUnderAKnownNameIsAccusedByItsWitness(t *testing.T) {
	h := newHost(t)
	h.witness()
	r := h.start()
	r.grow(20)
	r.stop()
	fresh := h.moved(func(string) bool { return false })
	r = fresh.open()
	r.requireAccused(frame.AnchorBeyondEnd)
	require.Zero(t, r.log.Head().Seq, "nothing was appended")
	r.end()
}

func TestAWitnessOutOfReachIsADoubtAndIsAskedAgain(t *testing.T) {
	h := newHost(t)
	near, far := h.witness(), h.witness()
	h.set = func(o *Options) { o.Every = 20 * time.Millisecond; o.Now = time.Now }
	far.Stop(t)
	r := h.start()
	status := r.Status()
	require.Empty(t, status.Failure)
	require.Empty(t, status.Witnesses[0].Message)
	require.NotEmpty(t, status.Witnesses[1].Message)
	require.False(t, status.Witnesses[1].Conflict)
	report, err := r.log.Verify(t.Context())
	require.NoError(t, err)
	require.Equal(t, frame.OK, report.Status)
	require.Equal(t, frame.L4, report.AnchorLevel)
	doubts := strings.Join(report.NotExcluded, "\n")
	require.Contains(t, doubts, "the witness "+far.URL+" gave no cosignature at")
	require.NotContains(t, doubts, near.URL)

	halt := r.running()
	asked := r.Status().Witnesses[1].AskedAt
	require.Eventually(t, func() bool { return r.Status().Witnesses[1].AskedAt.After(asked) }, patience, time.Millisecond)
	halt()
	r.stop()
}

func TestANewestNoteThatCantBeReadStopsTheSignerAndNotTheGate(t *testing.T) {
	h := newHost(t)
	r := h.start()
	r.grow(3)
	r.stop()
	list, err := h.folder().List()
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(list[len(list)-1].Path, []byte("damaged\n"), 0o600))
	r = h.start()
	require.NoError(t, r.log.Serving())
	require.Contains(t, r.Status().Failure, "move the file away")
	require.True(t, r.Signs(), "evidence is not given out unsigned instead")
	_, err = r.Checkpoint(t.Context(), 1)
	require.Equal(t, fault.AuditUnavailable, fault.CodeOf(err))
	require.Len(t, h.sizes(), len(list), "nothing is signed that could contradict it")
	report, err := r.log.Verify(t.Context())
	require.NoError(t, err)
	require.Equal(t, frame.OK, report.Status)
	require.Contains(t, strings.Join(report.Warnings, "\n"), list[len(list)-1].Path)
	r.stop()

	require.NoError(t, os.Remove(list[len(list)-1].Path))
	r = h.start()
	require.Empty(t, r.Status().Failure)
	r.stop()
}

func TestANewKeyContinuesWhatTheOldOneSigned(t *testing.T) {
	h := newHost(t)
	r := h.start() // the header names the first key
	r.stop()
	for range 2 { // the second key is named by a startup event alone
		key, err := checkpoint.NewPrivateKey()
		require.NoError(t, err)
		h.key = key
		r = h.start()
		require.True(t, r.fits, "the newest note is of the key before")
		r.grow(2)
		r.stop()
	}
	require.Equal(t, len(h.sizes()), h.notesThatFit())
}

func TestNotesOfAStrangerAreNoFault(t *testing.T) {
	h := newHost(t)
	r := h.start()
	r.stop()
	stranger, err := checkpoint.NewPrivateKey()
	require.NoError(t, err)
	signer, err := checkpoint.NewSigner(origin, stranger)
	require.NoError(t, err)
	var m checkpoint.Memory
	var tree checkpoint.Tree
	require.NoError(t, tree.Append(&m, make([][32]byte, 1000)...))
	n, err := signer.Sign(&m, 1000, nil)
	require.NoError(t, err)
	require.NoError(t, h.folder().Store(0, n))
	r = h.start()
	require.True(t, r.fits)
	report, err := r.log.Verify(t.Context())
	require.NoError(t, err)
	require.Equal(t, frame.OK, report.Status)
	require.Equal(t, frame.AnchorUntrusted, report.Anchors[len(report.Anchors)-1].Result)
	r.stop()
}

func TestDigestsComeWithEverySoManyEventsAndHold(t *testing.T) {
	h := newHost(t)
	h.set = func(o *Options) { o.DigestEvents = 10 }
	r := h.start()
	for range 12 {
		r.grow(3)
		r.sign()
		r.digests.Wait()
	}
	digests := 0
	for _, c := range r.named() {
		if c.Digest != [32]byte{} {
			digests++
			require.Equal(t, projections.ProjectorVersion, c.DigestProjectors)
		}
	}
	require.Equal(t, int(r.known().Size/10), digests)
	found, err := projections.Refold(t.Context(), projections.Options{Dir: "again", FS: vfs.NewMem()}, r.log)
	require.NoError(t, err)
	require.Equal(t, digests, found.Compared)
	require.Empty(t, found.Divergences)
	r.stop()
}

func TestABundleIsCoveredByACheckpointThatRunMakes(t *testing.T) {
	h := newHost(t)
	h.set = func(o *Options) { o.Now = time.Now }
	r := h.start()
	halt := r.running()
	r.grow(700)
	size := r.log.Head().Seq
	notes := make(chan string, 8)
	for range cap(notes) {
		go func() {
			raw, err := r.Checkpoint(context.Background(), size)
			if err != nil {
				raw = []byte(err.Error())
			}
			notes <- string(raw)
		}()
	}
	first := <-notes
	n, err := checkpoint.Open([]byte(first), checkpoint.Keys{Log: []checkpoint.PublicKey{h.key.Public()}})
	require.NoError(t, err, first)
	require.GreaterOrEqual(t, n.Size, size)
	for range cap(notes) - 1 {
		require.Equal(t, first, <-notes, "all are served by one")
	}
	for _, seq := range []uint64{1, 512, size} {
		e, err := r.log.At(context.Background(), seq)
		require.NoError(t, err)
		p, err := r.Prove(t.Context(), n.Size, seq)
		require.NoError(t, err)
		require.NoError(t, checkpoint.CheckInclusion(p, n.Size, n.Root, seq, e.Hash))
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = r.Checkpoint(over, size+1000)
	require.ErrorIs(t, err, context.Canceled)
	halt()
	behind, err := projections.Open(projections.Options{Dir: "behind", FS: vfs.NewMem()})
	require.NoError(t, err)
	require.NoError(t, behind.Connect(t.Context(), r.log)) // nobody folds what comes now
	r.grow(1)
	live := r.store
	r.Keeper.store = behind
	_, err = r.Prove(over, n.Size, 1)
	require.ErrorIs(t, err, projections.ErrBehind)
	r.Keeper.store = live
	require.NoError(t, behind.Close())
	r.stop()
}

func TestAWishThatIsMetAlreadyMakesNoCheckpoint(t *testing.T) {
	h := newHost(t)
	h.set = func(o *Options) { o.Now = time.Now }
	r := h.start()
	halt := r.running()
	r.grow(3)
	_, err := r.Checkpoint(t.Context(), r.log.Head().Seq)
	require.NoError(t, err)
	made := h.sizes()
	for range 3 { // each is looked at when the one before it is done with
		nudge(r.wanted)
		require.Eventually(t, func() bool { return len(r.wanted) == 0 }, patience, time.Millisecond)
	}
	require.Equal(t, made, h.sizes())
	halt()
	r.stop()
}

func TestNotesLieInTheFolderOfTheirSegment(t *testing.T) {
	h := newHost(t)
	h.segments = 64 << 10
	r := h.start()
	for range 6 {
		r.grow(100)
		r.sign()
	}
	require.Positive(t, r.log.Head().Segment)
	list, err := h.folder().List()
	require.NoError(t, err)
	for _, s := range list {
		require.Equal(t, r.log.SegmentOf(s.Size), s.Segment, "the note of %d events", s.Size)
	}
	require.Zero(t, list[0].Segment)
	require.Positive(t, list[len(list)-1].Segment)
	r.stop()
	require.Equal(t, len(h.sizes()), h.notesThatFit())
}

func TestWithSigningOffKeptNotesAreStillHeldAgainstTheLog(t *testing.T) {
	h := newHost(t)
	r := h.start()
	r.grow(4)
	r.stop()
	h.signs = false
	r = h.start()
	require.True(t, r.fits)
	require.False(t, r.Signs())
	r.grow(4)
	before := h.sizes()
	r.stop()
	require.Equal(t, before, h.sizes(), "and none is made")
}
