package frame_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"writegate/eventlog/frame"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Whoever edits a log can also make its sums right. These are the tools.

// fixHead renews the CRC of a frame's head.
func fixHead(b []byte) {
	binary.LittleEndian.PutUint32(b[36:], crc32.Checksum(b[:36], castagnoli))
}

// fixBody renews the CRC of a frame's body and then of its head.
func fixBody(b []byte) {
	n := int(binary.LittleEndian.Uint32(b[4:]))
	binary.LittleEndian.PutUint32(b[32:], crc32.Checksum(b[40:104+n], castagnoli))
	fixHead(b)
}

// rehash gives the frame another previous_hash and the event_hash and sums that
// go with it.
func rehash(b []byte, prev [32]byte) [32]byte {
	n := int(binary.LittleEndian.Uint32(b[4:]))
	copy(b[40:], prev[:])
	hash := frame.EventHash(binary.LittleEndian.Uint64(b[8:]), prev, b[72:72+n])
	copy(b[72+n:], hash[:])
	fixBody(b)
	return hash
}

// cutOut gives the bytes of a frame, by seq.
func (s *sample) cutOut(b []byte, seq uint64) []byte {
	f := s.frames[seq-1]
	return b[f.Off : f.Off+f.Size]
}

// Fault list 22 and 23.
func TestEditedRecordWithRightSumsIsAnEventHashFault(t *testing.T) {
	s := threeBatches(t)
	for seq := uint64(1); seq <= 6; seq++ {
		b := clone(s.bytes)
		f := s.cutOut(b, seq)
		f[72] ^= 1
		fixBody(f)
		r := verify(t, set(b))
		require.Equal(t, frame.Corruption, r.Status)
		assert.Equal(t, []frame.Kind{frame.BadEventHash}, kinds(r), explain(r))
		assert.Equal(t, seq, r.Faults[0].Seq)
	}
}

// The verifier hashes two frames at a time, and a short one is done before a long
// one in front of it: whatever their lengths and their neighbours, each that was
// edited is named, in its place, and no other.
func TestEachOfManyEditedRecordsIsNamedInItsPlace(t *testing.T) {
	type found struct {
		off  int64
		kind frame.Kind
	}
	rapid.Check(t, func(r *rapid.T) {
		s := newSample(t, "gate.example")
		for range rapid.IntRange(1, 4).Draw(r, "batches") {
			s.batch(t, rapid.SliceOfN(rapid.SampledFrom([]int{1, 5, 6, 60, 69, 70, 200, 2000}), 1, 6).Draw(r, "sizes")...)
		}
		edited := len(s.frames)
		s.batch(t, 50) // vouches for all before it
		b := clone(s.bytes)
		var want []found
		for _, f := range s.frames[:edited] {
			at := b[f.Off : f.Off+f.Size]
			switch rapid.IntRange(0, 3).Draw(r, "damage") {
			case 0:
				at[72] ^= 1
				fixBody(at)
				want = append(want, found{f.Off, frame.BadEventHash})
			case 1:
				at[72] ^= 1
				want = append(want, found{f.Off, frame.DurablePromise})
			}
		}
		report, err := frame.Verify(context.Background(), set(b), frame.Options{Workers: rapid.IntRange(1, 3).Draw(r, "workers")})
		require.NoError(r, err)
		var got []found
		for _, f := range report.Faults {
			got = append(got, found{f.Offset, f.Kind})
		}
		require.Equal(r, want, got, explain(report))
	})
}

func TestHistoryChainedAnewIsSeenByAnAnchorOnly(t *testing.T) {
	s := threeBatches(t)
	for from := uint64(1); from <= 6; from++ {
		b := clone(s.bytes)
		prev := s.header.Hash
		if from > 1 {
			prev = s.frames[from-2].Hash
		}
		s.cutOut(b, from)[72] ^= 1
		for seq := from; seq <= 6; seq++ {
			prev = rehash(s.cutOut(b, seq), prev)
		}
		r := verify(t, set(b))
		assert.Equal(t, frame.OK, r.Status, "a chain written anew is a chain: only an anchor knows better\n%s", explain(r))
		assert.Equal(t, []string{"removal of whole batches at any time would not show", "all events may be others than were written: hashes can be computed anew"}, r.NotExcluded)

		r = verify(t, set(b), s.anchor(frame.L3, 2))
		assert.Equal(t, []frame.Kind{frame.HistoryRewritten}, kinds(r), explain(r))
		assert.Equal(t, frame.AnchorMismatch, r.Anchors[0].Result)
		if from > 1 {
			r = verify(t, set(b), s.anchor(frame.L3, 0))
			assert.Equal(t, frame.OK, r.Status, "the anchor is older than the edit")
			assert.Contains(t, r.NotExcluded, fmt.Sprintf("events after event %d may be others than were written: hashes can be computed anew", r.Anchors[0].Seq))
		}
	}
}

func TestLastRecordEditedWithAllItsSums(t *testing.T) {
	s := threeBatches(t)
	b := clone(s.bytes)
	f := s.cutOut(b, 6)
	f[72] ^= 1
	rehash(f, s.frames[4].Hash)
	assert.Equal(t, frame.OK, verify(t, set(b)).Status)
	r := verify(t, set(b), s.anchor(frame.L1, 2))
	assert.Equal(t, []frame.Kind{frame.HistoryRewritten}, kinds(r), explain(r))
}

// Fault list 24. Sums are made right where that is possible, so that only the
// order speaks.
func TestRecordsOutOfPlace(t *testing.T) {
	s := threeBatches(t)
	other := newSegment(t, frame.Header{CreatedNS: 1, FirstSeq: 1, Origin: "gate.example", LogID: [16]byte{1}, Nonce: [32]byte{3}}).
		batch(t, 50).batch(t, 20, 33, 40).batch(t, 41, 8)
	join := func(parts ...[]byte) (b []byte) {
		for _, p := range parts {
			b = append(b, p...)
		}
		return b
	}
	at := func(seq uint64) int64 { return s.frames[seq-1].Off }
	frameOf := func(seq uint64) []byte { return s.cutOut(s.bytes, seq) }
	for name, b := range map[string][]byte{
		"removed":          join(s.bytes[:at(3)], s.bytes[at(4):]),
		"batch removed":    join(s.bytes[:at(2)], s.bytes[at(5):]),
		"first removed":    join(s.bytes[:at(1)], s.bytes[at(2):]),
		"doubled":          join(s.bytes[:at(3)], frameOf(2), s.bytes[at(3):]),
		"batch doubled":    join(s.bytes[:at(5)], s.bytes[at(2):]),
		"last doubled":     join(s.bytes, frameOf(6)),
		"swapped":          join(s.bytes[:at(3)], frameOf(4), frameOf(3), s.bytes[at(5):]),
		"of another log":   join(s.bytes[:at(3)], other.cutOut(other.bytes, 3), s.bytes[at(4):]),
		"last of another":  join(s.bytes[:at(6)], other.cutOut(other.bytes, 6)),
		"tail of another":  join(s.bytes[:at(5)], other.bytes[at(5):]),
		"first of another": join(s.bytes[:at(1)], other.bytes[at(1):]),
	} {
		r := verify(t, set(b))
		require.Equal(t, frame.Corruption, r.Status, "%s: %s", name, explain(r))
		assert.Subset(t, []frame.Kind{frame.BadSequence, frame.BadLinkage, frame.BadChainStart, frame.BadFrameRule}, kinds(r), "%s: %s", name, explain(r))
		assert.NotEqual(t, frame.BadFrameRule, r.Faults[0].Kind, "%s: %s", name, explain(r))
	}
}

func TestOldEventAfterAGapIsOutOfSequence(t *testing.T) {
	s := threeBatches(t)
	b := clone(s.bytes[:s.frames[3].Off])
	b[s.frames[2].Off] ^= 1
	b = append(append(b, s.cutOut(s.bytes, 2)...), s.bytes[s.frames[3].Off:]...)
	r := verify(t, set(b))
	require.Equal(t, []frame.Kind{frame.DurablePromise, frame.BadSequence}, kinds(r)[:2], explain(r))
}

func TestFrameRules(t *testing.T) {
	s := threeBatches(t)
	for name, edit := range map[string]func(b []byte){
		"flag on the last frame of a batch": func(b []byte) { s.cutOut(b, 4)[27] = 1 },
		"unknown flag":                      func(b []byte) { s.cutOut(b, 2)[27] |= 2 },
		"unknown kind":                      func(b []byte) { s.cutOut(b, 3)[26] = 9 },
		"batch_left does not fall":          func(b []byte) { s.cutOut(b, 3)[24] = 5 },
		"batch does not begin where it did": func(b []byte) { s.cutOut(b, 1)[24] = 3 },
		"durable_off beyond the batch":      func(b []byte) { put64(s.cutOut(b, 5)[16:], uint64(s.frames[5].Off)) },
		"durable_off inside the header":     func(b []byte) { put64(s.cutOut(b, 1)[16:], 8) },
		"durable_off falls":                 func(b []byte) { put64(s.cutOut(b, 5)[16:], 4096); put64(s.cutOut(b, 6)[16:], 4096) },
		"durable_off differs in a batch":    func(b []byte) { put64(s.cutOut(b, 3)[16:], 4096) },
		"durable_off rises in a batch":      func(b []byte) { put64(s.cutOut(b, 5)[16:], uint64(s.starts[1])) },
		"epoch falls":                       func(b []byte) { s.cutOut(b, 3)[28] = 7 },
	} {
		b := clone(s.bytes)
		edit(b)
		for seq := uint64(1); seq <= 6; seq++ {
			fixHead(s.cutOut(b, seq))
		}
		r := verify(t, set(b))
		require.Equal(t, frame.Corruption, r.Status, "%s: %s", name, explain(r))
		assert.Equal(t, frame.BadFrameRule, r.Faults[0].Kind, "%s: %s", name, explain(r))
	}
}

// Fault list 25: no byte of a header is free, even for who can make sums.
func TestEveryHeaderByteIsForced(t *testing.T) {
	s := threeBatches(t)
	for at := range 4096 {
		b := clone(s.bytes)
		if at < 4056 {
			b[at] ^= 0x10
			fixHeader(b)
		} else if b[at] ^= 0x10; at < 4088 {
			binary.LittleEndian.PutUint32(b[4088:], crc32.Checksum(b[:4088], castagnoli))
		}
		r := verify(t, set(b))
		require.Equal(t, frame.Corruption, r.Status, "byte %d: %s", at, explain(r))
		require.Subset(t, []frame.Kind{frame.BadHeader, frame.BadChainStart}, kinds(r)[:1], "byte %d: %s", at, explain(r))
	}
}

// fixHeader renews both sums of a header.
func fixHeader(b []byte) {
	sum := headerHash(b)
	copy(b[4056:], sum[:])
	binary.LittleEndian.PutUint32(b[4088:], crc32.Checksum(b[:4088], castagnoli))
}

// Fault list 17.
func TestLengthFieldsAreNotBelieved(t *testing.T) {
	s := threeBatches(t)
	for _, n := range []uint32{0, 1, 19, 21, 200, 1 << 20, 1<<20 + 1, 1 << 31, 1<<32 - 1} {
		for seq := uint64(1); seq <= 6; seq++ {
			b := clone(s.bytes)
			f := s.cutOut(b, seq)
			if binary.LittleEndian.Uint32(f[4:]) == n {
				continue
			}
			binary.LittleEndian.PutUint32(f[4:], n)
			fixHead(f)
			want := frame.Corruption
			if seq > 4 {
				want = frame.Partial
			}
			r := verify(t, set(b))
			assert.Equal(t, want, r.Status, "length %d in event %d: %s", n, seq, explain(r))
		}
	}
}

// Fault list 19 and 20: a chain can't see that its own end was removed.
func TestWholeBatchesCutAreSeenByAnAnchor(t *testing.T) {
	s := threeBatches(t)
	for batch := range 2 {
		cut := s.bytes[:s.ends[batch]]
		r := verify(t, set(cut))
		assert.Equal(t, frame.OK, r.Status)
		assert.Equal(t, []string{"removal of whole batches at any time would not show", "all events may be others than were written: hashes can be computed anew"}, r.NotExcluded)

		withHead := set(cut)
		withHead.Head = &frame.Head{LogID: s.header.LogID, Seq: 6, EventHash: s.last[2], EndOff: uint64(s.ends[2])}
		r = verify(t, withHead)
		assert.Equal(t, []frame.Kind{frame.AnchorBeyondEnd}, kinds(r), explain(r))
		assert.Equal(t, frame.Fail, r.Check(frame.CheckCount).Status)

		// The head was rolled back as well; a receipt was not.
		withHead.Head = &frame.Head{LogID: s.header.LogID, Seq: s.anchor(frame.L1, batch).Seq, EventHash: s.last[batch], EndOff: uint64(s.ends[batch])}
		assert.Equal(t, frame.OK, verify(t, withHead).Status)
		r = verify(t, withHead, s.anchor(frame.L3, 2))
		assert.Equal(t, []frame.Kind{frame.AnchorBeyondEnd}, kinds(r), explain(r))
	}
}

func TestAnchorOfAnotherLogAccuses(t *testing.T) {
	s := threeBatches(t)
	a := s.anchor(frame.L2, 2)
	a.LogID[5] = 9
	r := verify(t, set(s.bytes), a)
	assert.Equal(t, []frame.Kind{frame.HistoryRewritten}, kinds(r), explain(r))

	a.Untrusted = true
	r = verify(t, set(s.bytes), a)
	assert.Equal(t, frame.OK, r.Status, "an unknown signer proves nothing")
	assert.Equal(t, frame.NoAnchor, r.AnchorLevel)
}

// Fault list 27.
func TestSyncedPageLostOrOld(t *testing.T) {
	s := newSample(t, "gate.example")
	for range 30 {
		s.batch(t, 300, 500)
	}
	for page := 1; page < len(s.bytes)/4096; page++ {
		b := clone(s.bytes)
		clear(b[page*4096 : (page+1)*4096])
		r := verify(t, set(b))
		require.Equal(t, frame.Corruption, r.Status, explain(r))
		assert.Equal(t, frame.DurablePromise, r.Faults[0].Kind)
	}
	// The older self of a page is what it held before a later batch was written
	// to it: the rest of the page was zero then.
	for i, end := range s.ends[:len(s.ends)-2] {
		b := clone(s.bytes)
		next := (end + 4095) &^ 4095
		if next <= end || next > int64(len(b)) {
			continue
		}
		clear(b[end:next])
		r := verify(t, set(b))
		require.Equal(t, frame.Corruption, r.Status, "after batch %d: %s", i, explain(r))
	}
	b := clone(s.bytes)
	clear(b[s.starts[29]:])
	assert.Equal(t, frame.OK, verify(t, set(b)).Status, "nothing vouches for the last batch")
	assert.Equal(t, frame.Corruption, verify(t, set(b), s.anchor(frame.L1, 29)).Status)
}

// Fault list 28.
func TestWhatFollowsACleanLog(t *testing.T) {
	s := threeBatches(t)
	r := verify(t, set(append(clone(s.bytes), make([]byte, 9000)...)), s.anchor(frame.L1, 2))
	assert.Equal(t, frame.OK, r.Status, explain(r))
	assert.Zero(t, r.Tail.Length)

	garbage := append(clone(s.bytes), "not a frame, but it was here"...)
	r = verify(t, set(append(garbage, make([]byte, 5000)...)), s.anchor(frame.L1, 2))
	assert.Equal(t, frame.Partial, r.Status)
	assert.Equal(t, []frame.Kind{frame.TornTail}, kinds(r), explain(r))
	assert.Equal(t, s.ends[2], r.Tail.Offset)
	assert.Equal(t, int64(28), r.Tail.Length)
	assert.Len(t, r.Tail.SHA256, 64)
	assert.Equal(t, uint64(6), r.LastSeq)

	unfinished := s.bytes[:s.frames[3].Off]
	r = verify(t, set(append(clone(unfinished), make([]byte, 512)...)))
	assert.Equal(t, []frame.Kind{frame.IncompleteBatch}, kinds(r), explain(r))
	assert.Equal(t, 2, r.Tail.ReadableFrames)
	assert.Equal(t, uint64(1), r.LastSeq, "frames of an incomplete batch are not events")
}

// Whoever writes a signed log anew leaves its checkpoints out.
func TestASignedLogWithoutCheckpointsIsWarnedOf(t *testing.T) {
	const warning = "the log says that it is signed"
	s := newSegment(t, frame.Header{CreatedNS: 1, FirstSeq: 1, Origin: "gate.example", Signer: "gate.example+0102", LogID: [16]byte{1}, Nonce: [32]byte{2}}).batch(t, 50).batch(t, 20, 33)
	assert.Contains(t, strings.Join(verify(t, set(s.bytes)).Warnings, ";"), warning)
	for _, level := range []frame.Level{frame.L1, frame.L3} {
		assert.Contains(t, strings.Join(verify(t, set(s.bytes), s.anchor(level, 1)).Warnings, ";"), warning)
	}
	untrusted := s.anchor(frame.L4, 1)
	untrusted.Untrusted = true
	assert.Contains(t, strings.Join(verify(t, set(s.bytes), untrusted).Warnings, ";"), warning)
	assert.NotContains(t, strings.Join(verify(t, set(s.bytes), s.anchor(frame.L4, 1)).Warnings, ";"), warning)
	assert.NotContains(t, strings.Join(verify(t, set(threeBatches(t).bytes)).Warnings, ";"), warning)
}
