package evidence_test

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"writegate/eventlog/checkpoint"
	"writegate/eventlog/event"
	"writegate/eventlog/evidence"
	"writegate/eventlog/evidence/evidencetest"
	"writegate/eventlog/frame"
)

// image is a log's file in memory, to be read alone.
type image struct {
	frame.File // nil: only Pread and NextData are ever called
	b          []byte
}

func (m image) Pread(b []byte, off int64) (int, error) { return bytes.NewReader(m.b).ReadAt(b, off) }

func (image) NextData(off int64) int64 { return off }

func setOf(b []byte) frame.Set {
	return frame.Set{Path: "audit.wal", Active: frame.Segment{Name: "audit.wal", File: image{b: b}, Size: int64(len(b))}}
}

// judge holds a log's bytes against what is known from elsewhere.
func judge(t testing.TB, wal []byte, o evidence.Outside) frame.Report {
	set := setOf(wal)
	r, err := o.Verify(context.Background(), &set, frame.Options{Workers: 1})
	require.NoError(t, err)
	return r
}

func keys(k ...*checkpoint.PrivateKey) (list []checkpoint.PublicKey) {
	for _, key := range k {
		list = append(list, key.Public())
	}
	return list
}

func paper(text string) []evidence.Paper { return []evidence.Paper{{Name: "kept", Text: text}} }

func noteOf(t testing.TB, l *evidencetest.Log, size uint64) string {
	b, err := evidencetest.Signer{Log: l, Key: ours, Size: size}.Checkpoint(context.Background(), size)
	require.NoError(t, err)
	return string(b)
}

func TestPapersOfALogMatchIt(t *testing.T) {
	l := evidencetest.New(12)
	for seq, text := range l.Receipts(ours) {
		r := judge(t, l.WAL(), evidence.Outside{Receipts: paper(text), Keys: keys(ours)})
		require.Equal(t, frame.OK, r.Status, r.Faults)
		require.Equal(t, frame.L3, r.AnchorLevel, "event %d", seq+1)
		require.Len(t, r.Anchors, 1)
	}
	for size := uint64(1); size <= 12; size++ {
		r := judge(t, l.WAL(), evidence.Outside{Notes: paper(noteOf(t, l, size)), Keys: keys(ours)})
		require.Equal(t, frame.OK, r.Status, r.Faults)
		require.Equal(t, frame.L4, r.AnchorLevel)
		require.NotContains(t, strings.Join(r.NotExcluded, ";"), "every anchor is on this host")
	}
}

func TestWhoeverSignedUnknownAccusesNobody(t *testing.T) {
	l, older := evidencetest.New(12), evidencetest.New(9)
	o := evidence.Outside{Notes: paper(noteOf(t, l, 12)), Keys: keys(theirs)}
	for _, text := range l.Receipts(ours) {
		o.Receipts = append(o.Receipts, paper(text)...)
	}
	r := judge(t, older.WAL(), o)
	assert.Equal(t, []frame.Kind{frame.UntrustedAnchor}, kinds(r), "the key that was given proves nothing")
	assert.Len(t, r.Anchors, 13)
	for _, a := range r.Anchors {
		assert.Equal(t, frame.AnchorUntrusted, a.Result)
	}
}

func TestPapersThatAreWrongAreWarningsAndNoAccusation(t *testing.T) {
	l := evidencetest.New(12)
	receipt := l.Receipts(ours)[11]
	wrong := receipt[:len(receipt)-20] + strings.Repeat("A", 20)
	elsewhere := evidencetest.NewNamed("gate.elsewhere", 20)
	for _, o := range []evidence.Outside{
		{Receipts: paper("junk")}, {Notes: paper("junk")}, {Receipts: paper(wrong)}, {Notes: paper(noteOf(t, elsewhere, 20))},
		{Notes: paper(strings.Replace(noteOf(t, l, 12), "\n12\n", "\n13\n", 1))},
	} {
		o.Keys = keys(ours)
		r := judge(t, l.WAL(), o)
		assert.Equal(t, []frame.Kind{frame.UntrustedAnchor}, kinds(r))
		assert.NotEmpty(t, r.Warnings)
	}
}

// A batch that was cut in two by somebody who made the sums right again: the
// receipt's own event is still there, and the batch has lost its end.
func TestAReceiptKnowsTheWholeBatch(t *testing.T) {
	l := evidencetest.New(6) // batches of 1, 2 and 3 events
	first := l.Receipts(ours)[3]
	for n := 3; n <= 6; n++ {
		b := l.WAL()[:frame.HeaderSize]
		for seq := 1; seq <= n; seq++ {
			batch := frame.Append(nil, l.At(uint64(seq)))
			require.NoError(t, frame.SealBatch(batch, uint64(len(b))))
			b = append(b, batch...)
		}
		r := judge(t, b, evidence.Outside{Receipts: paper(first), Keys: keys(ours)})
		if n == 6 {
			assert.Equal(t, frame.OK, r.Status, r.Faults)
			continue
		}
		assert.Equal(t, []frame.Kind{frame.AnchorBeyondEnd}, kinds(r))
	}
}

// cutsVariable asks for more cuts than those of an ordinary run.
const cutsVariable = "EVIDENCE_CUTS"

// With any one receipt or checkpoint known that lies beyond the cut, no cut at
// any place is called ok; one between two batches, which a crash can't make
// where the end was known, is corruption.
func TestNoCutBeforeAKnownPaperIsCalledOk(t *testing.T) {
	cuts := 600
	if s := os.Getenv(cutsVariable); s != "" {
		n, err := strconv.Atoi(s)
		require.NoError(t, err, cutsVariable)
		cuts = n
	}
	l := evidencetest.New(40)
	wal, receipts := l.WAL(), l.Receipts(ours)
	var ends []int // of each event's frame
	for at := frame.HeaderSize; at < len(wal); {
		_, size, err := frame.ParseFrame(wal[at:])
		require.NoError(t, err)
		at += size
		ends = append(ends, at)
	}
	random := rand.New(rand.NewPCG(3, 4))
	for range cuts {
		seq := 1 + random.IntN(40)
		cut := frame.HeaderSize + random.IntN(ends[seq-1]-frame.HeaderSize)
		if random.IntN(3) == 0 && seq > 1 {
			cut = ends[random.IntN(seq-1)] // between two frames
		}
		o := evidence.Outside{Keys: keys(ours)}
		if random.IntN(2) == 0 {
			o.Receipts = paper(receipts[seq-1])
		} else {
			o.Notes = paper(noteOf(t, l, uint64(seq)))
		}
		b := bytes.Clone(wal[:cut])
		if random.IntN(2) == 0 { // a file that was made longer beforehand
			b = append(b, make([]byte, len(wal)-cut)...)
		}
		r := judge(t, b, o)
		require.Equal(t, frame.Corruption, r.Status, "cut at %d, event %d known: %v", cut, seq, r.Faults)
	}
}

func TestAnEndedContextIsNoAnswer(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	set := setOf(evidencetest.New(3).WAL())
	o := evidence.Outside{Receipts: paper("x")}
	_, _, err := o.Anchors(ctx, &set)
	assert.ErrorIs(t, err, context.Canceled)
}

// The log names its own key in the startup event, so a paper is believed
// without a key from elsewhere; and one of the log before it accuses nobody.
func TestTheKeyThatTheLogNamesIsKnown(t *testing.T) {
	vkey, err := ours.Public().VKey("gate.example")
	require.NoError(t, err)
	l := evidencetest.New(0)
	l.Append(evidencetest.Startup(vkey, &event.Predecessor{LogID: [16]byte{9}, LastSeq: 5}))
	l.Append(evidencetest.Draft(2))
	text := l.Receipts(ours)[1]
	r := judge(t, l.WAL(), evidence.Outside{Receipts: paper(text)})
	assert.Equal(t, frame.L3, r.AnchorLevel, r.Anchors)

	before := evidencetest.New(5)
	earlier := before.ReceiptsOf(ours, [16]byte{9})[4]
	r = judge(t, l.WAL(), evidence.Outside{Receipts: paper(earlier)})
	assert.Equal(t, frame.OK, r.Status, r.Faults)
	assert.Contains(t, strings.Join(r.Warnings, ";"), "it is of a log before this one, and was not compared: log 09000000000000000000000000000000, which it follows, can't be read")
}

// A lineage is three logs in a folder, each of which follows the one before up to the
// last event but one; the newest is at path.
type lineage struct {
	path string
	logs [3]*evidencetest.Log
}

// begin makes them under the origins.
func begin(t *testing.T, origins ...string) lineage {
	x := lineage{path: filepath.Join(t.TempDir(), "audit.wal")}
	var before *event.Predecessor
	for i, origin := range origins {
		l := evidencetest.NewOf([16]byte{byte(0xa0 + i)}, origin, 0)
		l.Append(evidencetest.Startup("", before))
		for seq := uint64(2); seq <= 7; seq++ {
			d := evidencetest.Draft(seq)
			d.Context.Actor = fmt.Sprint("actor", i)
			l.Append(d)
		}
		x.logs[i], before = l, l.Before(6)
		x.write(t, i, l)
	}
	return x
}

func (x *lineage) write(t *testing.T, i int, l *evidencetest.Log) {
	path := x.file(i)
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
	require.NoError(t, os.WriteFile(path, l.WAL(), 0o600))
}

func (x *lineage) file(i int) string {
	if i == len(x.logs)-1 {
		return x.path
	}
	return frame.RetiredPath(x.path, x.logs[i].Header().LogID)
}

// judge holds the log at a path against papers that were asked for, with our key.
func (x *lineage) judge(t *testing.T, path string, receipts, notes []evidence.Paper) frame.Report {
	for _, papers := range [][]evidence.Paper{receipts, notes} {
		for i := range papers {
			papers[i].Asked = true
		}
	}
	set, err := frame.Discover(t.Context(), frame.OS{}, path)
	require.NoError(t, err)
	o := evidence.Outside{Receipts: receipts, Notes: notes, Keys: keys(ours)}
	r, err := o.Verify(t.Context(), &set, frame.Options{Workers: 1})
	require.NoError(t, err)
	require.NoError(t, set.Close())
	return r
}

// A log that others follow is held against what the one behind it says of its end, also
// where nothing was kept of it. Nobody has signed that, so it is a doubt about either.
func TestALogThatOthersFollowIsHeldAgainstThem(t *testing.T) {
	x := begin(t, "gate.example/0", "gate.example/1", "gate.example/2")
	bare := func(i int) frame.Report {
		set, err := frame.Discover(t.Context(), frame.OS{}, x.file(i))
		require.NoError(t, err)
		defer set.Close()
		var o evidence.Outside
		r, err := o.Verify(t.Context(), &set, frame.Options{Workers: 1})
		require.NoError(t, err)
		return r
	}
	for i := range 2 {
		r := bare(i)
		assert.Equal(t, frame.OK, r.Status, r.Faults)
		assert.Equal(t, frame.L2, r.AnchorLevel)
	}
	for i := range 2 {
		x.write(t, i, evidencetest.NewOf(x.logs[i].Header().LogID, x.logs[i].Header().Origin, 7))
		r := bare(i)
		assert.Equal(t, []frame.Kind{frame.UntrustedAnchor}, kinds(r))
		assert.Equal(t, frame.Partial, r.Status)
		assert.Contains(t, r.Faults[0].Detail, "the log that follows it")
		assert.Contains(t, r.Faults[0].Detail, "either of the two logs may have been changed")
		x.write(t, i, evidencetest.NewOf(x.logs[i].Header().LogID, x.logs[i].Header().Origin, 2))
		assert.Equal(t, frame.Partial, bare(i).Status, "cut off before what its successor names")
		assert.ElementsMatch(t, []frame.Kind{frame.AnchorBeyondEnd, frame.UntrustedAnchor}, kinds(x.judge(t, x.file(i), paper(x.logs[i].Receipts(ours)[6]), nil)), "a receipt of its own tells which of the two it was")
		x.write(t, i, x.logs[i])
	}
	forged := evidencetest.NewOf([16]byte{0xee}, "gate.example/2", 0)
	forged.Append(evidencetest.Startup("", &event.Predecessor{LogID: x.logs[1].Header().LogID, LastSeq: 6, LastEventHash: [32]byte{1}}))
	f, size, err := frame.ParseFrame(forged.WAL()[frame.HeaderSize:])
	require.NoError(t, err)
	f.Hash[0] ^= 1
	require.NoError(t, os.WriteFile(x.path, append(append(forged.WAL()[:frame.HeaderSize:frame.HeaderSize], frame.Append(nil, &f)...), forged.WAL()[frame.HeaderSize+size:]...), 0o600))
	assert.Equal(t, frame.OK, bare(1).Status, "one that is not what its hash says accuses nobody")
	assert.Contains(t, strings.Join(bare(1).Warnings, "\n"), "is not what its hash says")
	whole := evidencetest.NewOf([16]byte{0xee}, "gate.example/2", 0)
	whole.Append(evidencetest.Startup("", &event.Predecessor{LogID: x.logs[1].Header().LogID, LastSeq: 6, LastEventHash: [32]byte{1}}))
	x.write(t, 2, whole)
	assert.Equal(t, []frame.Kind{frame.UntrustedAnchor}, kinds(bare(1)), "one that was forged whole accuses nobody")
	require.NoError(t, os.Remove(x.path))
	assert.Contains(t, strings.Join(bare(0).Warnings, "\n"), "not held against the one that follows it")
}

func TestAPaperOfALogBeforeThisOneIsHeldAgainstThatLog(t *testing.T) {
	for name, origins := range map[string][]string{
		"origins of their own": {"gate.example/0", "gate.example/1", "gate.example/2"},
		"one origin":           {"gate.example", "gate.example", "gate.example"},
	} {
		t.Run(name, func(t *testing.T) {
			x := begin(t, origins...)
			anew := evidencetest.NewOf(x.logs[0].Header().LogID, origins[0], 7)
			receipt := func(l *evidencetest.Log, seq int) []evidence.Paper { return paper(l.Receipts(ours)[seq-1]) }
			note := func(l *evidencetest.Log, size uint64) []evidence.Paper { return paper(noteOf(t, l, size)) }
			for _, c := range []struct {
				what           string
				receipts, note []evidence.Paper
				kinds          []frame.Kind
				said           string
			}{
				{"a receipt of the first", receipt(x.logs[0], 5), nil, nil, "kept is of log a0"},
				{"a receipt of the second", receipt(x.logs[1], 1), nil, nil, "kept is of log a1"},
				{"a checkpoint of the first", nil, note(x.logs[0], 6), nil, "kept is of log a0"},
				{"a checkpoint of the second", nil, note(x.logs[1], 3), nil, "kept is of log a1"},
				{"all at once", slices.Concat(receipt(x.logs[0], 2), receipt(x.logs[1], 2), receipt(x.logs[2], 2)), note(x.logs[2], 5), nil, "kept is of log a1"},
				{"a receipt of what was lost", receipt(x.logs[0], 7), nil, []frame.Kind{frame.UntrustedAnchor}, "goes on from event 6"},
				{"a checkpoint of what was lost", nil, note(x.logs[1], 7), []frame.Kind{frame.UntrustedAnchor}, "knows 7 events"},
				{"a receipt of other events", receipt(anew, 2), nil, []frame.Kind{frame.HistoryRewritten}, "another event_hash at 2"},
				{"a checkpoint of other events", nil, note(anew, 2), []frame.Kind{frame.HistoryRewritten}, "written anew"},
				{"a receipt of a log that is none of them", paper(x.logs[0].ReceiptsOf(ours, [16]byte{9})[1]), nil, []frame.Kind{frame.HistoryRewritten}, "this is another log"},
				{"a checkpoint of a log that is none of them", nil, note(evidencetest.NewNamed("elsewhere", 2), 2), []frame.Kind{frame.UntrustedAnchor}, "it is of the log \"elsewhere\""},
			} {
				r := x.judge(t, x.path, c.receipts, c.note)
				assert.ElementsMatch(t, c.kinds, kinds(r), "%s: %v", c.what, r.Faults)
				said := strings.Join(r.Warnings, "\n")
				for _, f := range r.Faults {
					said += "\n" + f.Detail
				}
				assert.Contains(t, said, c.said, c.what)
			}
			for i, l := range x.logs[:2] {
				r := x.judge(t, x.file(i), receipt(l, 7), note(l, 7))
				assert.Empty(t, r.Faults, "its own")
				r = x.judge(t, x.file(i), receipt(x.logs[i+1], 3), nil)
				assert.Equal(t, []frame.Kind{frame.UntrustedAnchor}, kinds(r), "of a log behind it")
				assert.Contains(t, r.Faults[0].Detail, "followed by others")
			}
			r := x.judge(t, x.file(1), receipt(x.logs[0], 3), note(x.logs[0], 3))
			assert.Empty(t, r.Faults, "of a log before one that is retired itself")

			// Written anew with the receipts' log_id: the log behind it names another end.
			x.write(t, 0, anew)
			for _, l := range []*evidencetest.Log{x.logs[0], anew} {
				r := x.judge(t, x.path, receipt(l, 5), note(l, 5))
				assert.Equal(t, []frame.Kind{frame.UntrustedAnchor}, kinds(r))
				require.Len(t, r.Faults, 2)
				assert.Contains(t, r.Faults[0].Detail, "put that log's own folder there")
			}
			assert.Empty(t, x.judge(t, x.path, receipt(x.logs[1], 5), note(x.logs[1], 5)).Faults)
		})
	}
}

// TestOfALogThatWasCopiedAloneNobodyCanTell which came before the one that it names.
func TestOfALogThatWasCopiedAloneNobodyCanTell(t *testing.T) {
	x := begin(t, "gate.example", "gate.example", "gate.example")
	alone := filepath.Join(t.TempDir(), "copy.wal")
	require.NoError(t, os.WriteFile(alone, x.logs[2].WAL(), 0o600))
	for i, l := range x.logs {
		r := x.judge(t, alone, paper(l.Receipts(ours)[3]), nil)
		said := strings.Join(r.Warnings, "\n")
		for _, f := range r.Faults {
			said += "\n" + f.Detail
		}
		for _, f := range x.judge(t, alone, nil, paper(noteOf(t, l, 3))).Faults {
			r.Faults = append(r.Faults, f)
			said += "\n" + f.Detail
		}
		if i == 2 {
			assert.Empty(t, r.Faults)
			continue
		}
		assert.Equal(t, frame.Partial, r.Status)
		assert.NotContains(t, kinds(r), frame.HistoryRewritten)
		assert.Equal(t, 2, strings.Count(said, "has to lie at "+alone+".retired/a1"), said)
	}
	both := x.judge(t, alone, slices.Concat(paper(x.logs[2].Receipts(ours)[3]), paper(x.logs[1].Receipts(ours)[3])), nil)
	assert.Equal(t, frame.Partial, both.Status, "what was asked for was not compared, whatever else was")
	require.Len(t, both.Faults, 1)
	assert.Contains(t, both.Faults[0].Detail, "put that folder there")
}

// A log that begins behind the loss of all that was before it is ok with receipts of its
// own alone: those of the lost one that were asked for can't be compared.
func TestOfALogOfWhichNothingWasSavedNobodyCanTell(t *testing.T) {
	l := evidencetest.New(0)
	vkey, err := ours.Public().VKey("gate.example")
	require.NoError(t, err)
	l.Append(evidencetest.Startup(vkey, &event.Predecessor{LogID: [16]byte{9}}))
	own, lost := l.Receipts(ours)[0], evidencetest.New(5).ReceiptsOf(ours, [16]byte{9})[4]
	asked := func(texts ...string) (papers []evidence.Paper) {
		for _, text := range texts {
			papers = append(papers, evidence.Paper{Name: "kept", Text: text, Asked: true})
		}
		return papers
	}
	o := evidence.Outside{Receipts: asked(own), Keys: keys(ours)}
	assert.Equal(t, frame.OK, judge(t, l.WAL(), o).Status)
	o.Receipts = asked(own, lost)
	r := judge(t, l.WAL(), o)
	assert.Equal(t, frame.Partial, r.Status)
	require.Len(t, r.Faults, 1)
	assert.Contains(t, r.Faults[0].Detail, "nothing could be saved")
}

// No batch has more frames than fit: what goes on beyond that is not gathered, and no
// checkpoint can be compared with it.
func TestABatchThatDoesNotEndIsNotGathered(t *testing.T) {
	for frames, compared := range map[int]bool{frame.MaxBatch: true, frame.MaxBatch + 1: false} {
		l := evidencetest.New(frames)
		wal := slices.Clone(l.WAL()[:frame.HeaderSize])
		for seq := uint64(1); seq <= uint64(frames); seq++ {
			f := *l.At(seq)
			f.DurableOff, f.Flags, f.BatchLeft = frame.HeaderSize, 0, uint16(min(uint64(frames)-seq, 1))
			wal = frame.Append(wal, &f)
		}
		p := paper(noteOf(t, l, 5))
		p[0].Asked = true
		r := judge(t, wal, evidence.Outside{Notes: p, Keys: keys(ours)})
		assert.Equal(t, compared, r.Check(frame.CheckAnchors).Faults == 0, "%d frames", frames) // more faults are counted than are listed
	}
}
