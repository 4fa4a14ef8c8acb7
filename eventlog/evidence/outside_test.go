package evidence_test

import (
	"bytes"
	"context"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"writegate/eventlog/checkpoint"
	"writegate/eventlog/evidence"
	"writegate/eventlog/evidence/evidencetest"
	"writegate/eventlog/frame"
)

// image is a log's file in memory, to be read alone.
type image struct {
	frame.File // nil: only Pread is ever called
	b          []byte
}

func (m image) Pread(b []byte, off int64) (int, error) { return bytes.NewReader(m.b).ReadAt(b, off) }

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
	l.Append(evidencetest.Startup(vkey, [16]byte{9}))
	l.Append(evidencetest.Draft(2))
	text := l.Receipts(ours)[1]
	r := judge(t, l.WAL(), evidence.Outside{Receipts: paper(text)})
	assert.Equal(t, frame.L3, r.AnchorLevel, r.Anchors)

	before := evidencetest.New(5)
	earlier := before.ReceiptsOf(ours, [16]byte{9})[4]
	r = judge(t, l.WAL(), evidence.Outside{Receipts: paper(earlier)})
	assert.Equal(t, frame.OK, r.Status, r.Faults)
	assert.Contains(t, strings.Join(r.Warnings, ";"), "which this one follows after a loss that was accepted")
}
