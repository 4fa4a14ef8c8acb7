package frame_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"writegate/eventlog/frame"
)

// badPages is a file of which some pages can't be read, as a failing disk
// answers: what comes before the page is given, then EIO.
type badPages struct {
	image
	bad map[int64]bool
}

func (f badPages) Pread(b []byte, off int64) (int, error) {
	for at := off &^ 4095; at < off+int64(len(b)); at += 4096 {
		if f.bad[at/4096] {
			n, err := f.image.Pread(b[:max(at-off, 0)], off)
			if err != nil && err != io.EOF {
				return n, err
			}
			return n, unix.EIO
		}
	}
	return f.image.Pread(b, off)
}

func TestUnreadablePages(t *testing.T) {
	s := newSample(t, "gate.example")
	for range 40 {
		s.batch(t, 300, 500, 900)
	}
	pages := int64(len(s.bytes) / 4096)
	for page := int64(1); page < pages; page++ {
		damaged := set(s.bytes)
		damaged.Active.File = badPages{image(s.bytes), map[int64]bool{page: true}}
		r := verify(t, damaged)
		require.Equal(t, frame.CommittedUnreadable, r.Faults[0].Kind, "page %d: %s", page, explain(r))
		require.Equal(t, frame.Corruption, r.Status)
		require.Equal(t, 1, r.FaultsTotal, "page %d: %s", page, explain(r))
		require.Contains(t, r.Faults[0].Detail, "input/output error")
		require.Equal(t, uint64(120), r.LastSeq, "reading goes on after the page")
	}
	header := set(s.bytes)
	header.Active.File = badPages{image(s.bytes), map[int64]bool{0: true}}
	r := verify(t, header)
	assert.Equal(t, []frame.Kind{frame.Unreadable}, kinds(r), explain(r))

	// After the end nobody vouches for a page, unless an anchor does.
	tail := set(append(clone(s.bytes), make([]byte, 20000)...))
	tail.Active.File = badPages{tail.Active.File.(image), map[int64]bool{pages + 2: true}}
	r = verify(t, tail, s.anchor(frame.L1, 39))
	assert.Equal(t, []frame.Kind{frame.Unreadable}, kinds(r), explain(r))
	beyond := s.anchor(frame.L1, 39)
	beyond.Seq++
	r = verify(t, tail, beyond)
	assert.Equal(t, frame.Corruption, r.Status, explain(r))
}

func TestRangeIsVerifiedFromAnyHint(t *testing.T) {
	s := newSample(t, "gate.example")
	for range 30 {
		s.batch(t, 30, 300, 90)
	}
	hints := []frame.Hint{{}, {Offset: s.frames[10].Off}, {Offset: s.frames[10].Off + 8}, {Offset: 1 << 40}, {Offset: -8}, {Segment: 9, Offset: 4096}, {Offset: s.frames[60].Off}}
	for from := uint64(1); from <= 91; from += 7 {
		for _, to := range []uint64{0, from, from + 4, 95} {
			for _, hint := range hints {
				r, err := frame.Verify(context.Background(), set(s.bytes), frame.Options{From: from, To: to, Hint: hint, Workers: 1})
				require.NoError(t, err)
				requireSound(t, r)
				what := fmt.Sprintf("%d to %d from %v: %s", from, to, hint, explain(r))
				if from == 1 && to == 0 {
					require.Equal(t, frame.OK, r.Status, what)
					continue
				}
				last := uint64(90)
				if to > 0 {
					last = min(to, 90)
				}
				if from > 90 {
					require.Zero(t, r.EventCount, what)
					continue
				}
				require.Equal(t, []frame.Kind{frame.RangeLimited}, kinds(r), what)
				require.Equal(t, []uint64{from, last, last - from + 1}, []uint64{r.FirstSeq, r.LastSeq, r.EventCount}, what)
				require.Equal(t, fmt.Sprintf("%x", s.frames[last-1].Hash), r.Head.EventHash, what)
			}
		}
	}
}

// What happened to the first event of a range is of the range, though no frame in it says so.
func TestTheFirstEventOfARangeIsJudged(t *testing.T) {
	s := newSample(t, "gate.example")
	for range 6 {
		s.batch(t, 40)
	}
	s.batch(t, 30, 40)
	for at := uint64(1); at <= 6; at++ {
		f := s.frames[at-1]
		without := append(clone(s.bytes[:f.Off]), s.bytes[s.frames[at].Off:]...)
		for what, damaged := range map[string][]byte{"changed": flip(s.bytes, 8*(int(f.Off)+75)), "removed": without} {
			for _, to := range []uint64{0, at, at + 1} {
				r, err := frame.Verify(context.Background(), set(damaged), frame.Options{From: at, To: to, Workers: 1})
				require.NoError(t, err)
				require.Equal(t, frame.Corruption, r.Status, "event %d is %s, to %d: %s", at, what, to, explain(r))
			}
			if what == "changed" && at < 6 {
				r, err := frame.Verify(context.Background(), set(damaged), frame.Options{From: at + 1, Workers: 1})
				require.NoError(t, err)
				require.Equal(t, []frame.Kind{frame.RangeLimited}, kinds(r), "event %d is %s, and not of the range: %s", at, what, explain(r))
			}
		}
	}
	require.Contains(t, func() string {
		r, err := frame.Verify(context.Background(), set(s.bytes), frame.Options{From: 7, To: 20})
		require.NoError(t, err)
		return explain(r)
	}(), "only events 7 to 20 were asked for")
}

func TestRangeAcrossSegmentsSeesOnlyItsOwnDamage(t *testing.T) {
	segs := chainOf(t)
	whole := wholeSet(segs)
	whole.Sealed[0] = sealed(segs[0], flip(segs[0].bytes, 8*4300))
	whole.Head = nil
	check := func(from, to uint64, anchors ...frame.Anchor) frame.Report {
		r, err := frame.Verify(context.Background(), whole, frame.Options{From: from, To: to, Anchors: anchors})
		require.NoError(t, err)
		return r
	}
	r := check(8, 14, segs[2].anchor(frame.L3, 0), segs[3].anchor(frame.L3, 1))
	assert.Equal(t, []frame.Kind{frame.RangeLimited}, kinds(r), explain(r))
	assert.Equal(t, []uint64{8, 14, 7}, []uint64{r.FirstSeq, r.LastSeq, r.EventCount})
	assert.Equal(t, frame.L3, r.AnchorLevel)
	assert.Contains(t, r.Warnings[len(r.Warnings)-1], "outside the range")
	assert.Equal(t, frame.Corruption, check(1, 14).Status)
}

func TestAllFaultsAreCountedAndTheFirstThousandListed(t *testing.T) {
	s := newSample(t, "gate.example")
	for range 1300 {
		s.batch(t, 40)
	}
	s.batch(t, 1)
	b := clone(s.bytes)
	for _, f := range s.frames[:1300] {
		b[f.Off+80] ^= 1
	}
	r := verify(t, set(b))
	assert.Equal(t, 1300, r.FaultsTotal)
	assert.Len(t, r.Faults, frame.MaxFaults)
	assert.Equal(t, 1300, r.Check(frame.CheckHash).Faults)
	assert.Equal(t, uint64(0), r.VerifiedTo)
}

func TestReadingGoesOnAfterEachFault(t *testing.T) {
	s := newSample(t, "gate.example")
	for range 50 {
		s.batch(t, 60, 61, 62)
	}
	b := clone(s.bytes)
	b[s.frames[10].Off] ^= 1                      // a head: found again by its magic
	b[s.frames[40].Off+90] ^= 1                   // a body: skipped by its length
	s.cutOut(b, 71)[72] ^= 1                      // a record with its sums made right
	fixBody(s.cutOut(b, 71))                      //
	clear(b[s.frames[100].Off:s.frames[103].Off]) // three frames at once
	r := verify(t, set(b))
	assert.Equal(t, []frame.Kind{frame.DurablePromise, frame.DurablePromise, frame.BadEventHash, frame.DurablePromise}, kinds(r), explain(r))
	assert.Equal(t, []uint64{11, 41, 71, 101}, []uint64{r.Faults[0].Seq, r.Faults[1].Seq, r.Faults[2].Seq, r.Faults[3].Seq})
	assert.Equal(t, s.frames[103].Off-s.frames[100].Off, r.Faults[3].Length)
	assert.Equal(t, uint64(150), r.LastSeq)
	assert.Equal(t, uint64(9), r.VerifiedTo, "the last complete batch before the first fault")
	assert.Contains(t, r.Faults[0].Detail, "byte 0 of the frame, bit 0")
	assert.Contains(t, r.Faults[1].Detail, "byte 90 of the frame, bit 0")
}

// A file made to be slow: nothing but heads with right sums, each of which
// claims a record of 1 MiB.
func TestFileOfHeadsAloneIsJudgedInAFewPasses(t *testing.T) {
	s := newSample(t, "x")
	head := make([]byte, 40)
	copy(head, "GATE")
	binary.LittleEndian.PutUint32(head[4:], 1<<20)
	put64(head[16:], frame.HeaderSize)
	fixHead(head)
	b := append(clone(s.bytes), bytes.Repeat(head, 4<<20/40)...)
	var reads atomic.Int64
	counted := set(b)
	counted.Active.File = counting{image(b), &reads}
	r := verify(t, counted)
	assert.Equal(t, []frame.Kind{frame.TornTail}, kinds(r), explain(r))
	assert.Less(t, reads.Load(), int64(100*len(b)), "bytes read")
}

// Text that is made of heads, each of which claims as much as there is, hides nothing that
// stands behind it: a record of one event holds it, and the head of that one is damaged.
func TestHeadsInARecordHideNothingBehindThem(t *testing.T) {
	for _, claims := range []int{1, 8, 84, 2000, 20_000} {
		s := newSample(t, "x")
		s.batch(t, 40)
		text := make([]byte, 0, 40*claims)
		for i := range claims {
			head := make([]byte, 40)
			copy(head, "GATE")
			binary.LittleEndian.PutUint32(head[4:], uint32(1<<20>>(i%20)))
			put64(head[16:], frame.HeaderSize)
			fixHead(head)
			text = append(text, head...)
		}
		s.record(t, text)
		for range 60 {
			s.batch(t, 100_000)
		}
		b := clone(s.bytes)
		b[s.frames[1].Off+8] ^= 1
		r := verify(t, set(b))
		assert.Equal(t, []frame.Kind{frame.DurablePromise}, kinds(r), "%d: %s", claims, explain(r))
	}
}

// counting adds up what is read.
type counting struct {
	image
	bytes *atomic.Int64
}

func (c counting) Pread(b []byte, off int64) (int, error) {
	n, err := c.image.Pread(b, off)
	c.bytes.Add(int64(n))
	return n, err
}

// growing is a log that a writer begins to lengthen while it is read: the first
// look at its end sees nothing, every later one sees all.
type growing struct {
	image
	end   int64
	looks *atomic.Int64
}

func (g growing) Pread(b []byte, off int64) (int, error) {
	n, err := g.image.Pread(b, off)
	if hidden := off + int64(n) - g.end; hidden > 0 {
		if g.looks.Add(1) == 1 {
			clear(b[max(g.end-off, 0):n])
		}
	}
	return n, err
}

func TestWriterThatBeginsMeanwhileIsNoCorruption(t *testing.T) {
	s := threeBatches(t)
	var looks atomic.Int64
	moving := set(s.bytes)
	moving.Active.File = growing{image(s.bytes), s.ends[0], &looks}
	r := verify(t, moving, s.anchor(frame.L1, 2))
	assert.Equal(t, []frame.Kind{frame.NoReadLock}, kinds(r), explain(r))
	assert.Equal(t, frame.Partial, r.Status)
	assert.Equal(t, uint64(1), r.LastSeq)
}

func TestCopyMayBeOlderThanItsAnchors(t *testing.T) {
	s := threeBatches(t)
	r, err := frame.Verify(context.Background(), set(s.bytes[:s.ends[1]]), frame.Options{Copy: true, Anchors: []frame.Anchor{s.anchor(frame.L3, 2)}})
	require.NoError(t, err)
	assert.Equal(t, frame.OK, r.Status, explain(r))
	assert.Equal(t, frame.AnchorBeyond, r.Anchors[0].Result)
	assert.Contains(t, r.Warnings[0], "this copy is older, or was cut")
}

func TestProgressEndsAtTheTotal(t *testing.T) {
	segs := chainOf(t)
	var last, total int64
	_, err := frame.Verify(context.Background(), wholeSet(segs), frame.Options{Progress: func(done, all int64) {
		require.GreaterOrEqual(t, done, last)
		last, total = done, all
	}})
	require.NoError(t, err)
	assert.Equal(t, total, last)
	assert.Positive(t, total)
}

func TestCancelledVerificationGivesNoVerdict(t *testing.T) {
	s := newSample(t, "gate.example")
	for range 200 {
		s.batch(t, 60000)
	}
	ctx, cancel := context.WithCancel(context.Background())
	_, err := frame.Verify(ctx, set(s.bytes), frame.Options{Workers: 2, Progress: func(int64, int64) { cancel() }})
	assert.ErrorIs(t, err, context.Canceled)
}

func TestReportJSONIsTheContract(t *testing.T) {
	s := threeBatches(t)
	b := clone(s.bytes)
	s.cutOut(b, 1)[72] ^= 1
	a := s.anchor(frame.L1, 2)
	r := verify(t, set(append(b, 'x')), a)
	r.StartedAt, r.DurationMS = "2026-01-01T00:00:00.000000000Z", 41
	got, err := json.Marshal(r)
	require.NoError(t, err)
	want := `{"status":"corruption_detected","source":"wal","path":"audit.wal","log_id":"01000000000000000000000000000000","origin":"gate.example",` +
		`"first_seq":1,"last_seq":6,"event_count":5,"head":{"seq":6,"event_hash":"` + fmt.Sprintf("%x", s.last[2]) + `","segment":0,"end_offset":4936},` +
		`"verified_to":0,"anchor_level":"L1","anchors":[{"level":"L1","seq":6,"time":"","result":"match"}],` +
		`"checks":[{"name":"wal_existence","status":"pass","faults":0},{"name":"read_lock","status":"pass","faults":0},{"name":"header","status":"pass","faults":0},` +
		`{"name":"event_count","status":"fail","faults":0},{"name":"event_hash","status":"fail","faults":1},{"name":"previous_hash","status":"pass","faults":0},` +
		`{"name":"sequence","status":"pass","faults":0},{"name":"chain_start","status":"pass","faults":0},{"name":"trailing_bytes","status":"fail","faults":1},` +
		`{"name":"padding","status":"pass","faults":0},{"name":"anchors","status":"pass","faults":0}],"faults_total":2,` +
		`"faults":[{"check":"event_hash","kind":"durable_promise","segment":0,"offset":4096,"length":160,"seq":1,"detail":"frame: wrong CRC of the body; a later batch says that everything below offset 4256 had been synced; one flipped bit explains it: byte 72 of the frame, bit 0"},` +
		`{"check":"trailing_bytes","kind":"torn_tail","segment":0,"offset":4936,"length":1,"seq":7,"detail":"1 bytes after the last complete batch, with 0 readable frames: an unfinished write, never acknowledged"}],` +
		`"tail":{"segment":0,"offset":4936,"length":1,"sha256":"2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881","readable_frames":0},` +
		`"warnings":[],"not_excluded":["removal of whole batches after event 6 would not show","all events may be others than were written: hashes can be computed anew, and every anchor is on this host"],"started_at":"2026-01-01T00:00:00.000000000Z","duration_ms":41}`
	assert.Equal(t, want, string(got))
}

func TestOfVeryManyMatchingAnchorsTheNewestAreListed(t *testing.T) {
	s := newSample(t, "gate.example")
	for range 1200 {
		s.batch(t, 10)
	}
	var o frame.Options
	for p, err := range frame.Scan(t.Context(), image(s.bytes), frame.HeaderSize, int64(len(s.bytes))) {
		require.NoError(t, err)
		o.Anchors = append(o.Anchors, frame.Anchor{Level: frame.L4, Seq: p.Seq, Hash: p.Hash})
	}
	o.Anchors[3].Hash[0]++
	r, err := frame.Verify(t.Context(), set(s.bytes), o)
	require.NoError(t, err)
	require.Equal(t, frame.Corruption, r.Status, "each of them was judged")
	var listed []uint64
	for _, a := range r.Anchors {
		if a.Level == frame.L4 {
			listed = append(listed, a.Seq)
		}
	}
	require.Len(t, listed, 1001)
	require.Equal(t, []uint64{4, 201}, listed[:2], "what does not match is listed always")
	require.EqualValues(t, 1200, listed[1000])
	require.Contains(t, r.Warnings, "199 more anchors match; the older ones are not listed")
}
