package evidence_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"writegate/eventlog/checkpoint"
	"writegate/eventlog/evidence"
	"writegate/eventlog/evidence/evidencetest"
	"writegate/eventlog/frame"
)

var (
	ours   = evidencetest.Key("ours")
	theirs = evidencetest.Key("theirs")
)

func request(first, last uint64) evidence.Request {
	return evidence.Request{First: first, Last: last, Reason: "audit \"7\"\n", CreatedAt: time.Unix(0, evidencetest.Created+5)}
}

// write makes a bundle; s may be nil.
func write(t testing.TB, l evidence.Source, req evidence.Request, s evidence.Signer) []byte {
	var b bytes.Buffer
	require.NoError(t, evidence.Write(context.Background(), &b, l, req, s))
	return b.Bytes()
}

func signed(t testing.TB, l *evidencetest.Log, first, last uint64) []byte {
	return write(t, l, request(first, last), evidencetest.Signer{Log: l, Key: ours})
}

func verify(t testing.TB, b []byte, keys ...checkpoint.PublicKey) frame.Report {
	r, err := evidence.Verify(context.Background(), bytes.NewReader(b), evidence.Options{Path: "x.json", Keys: keys})
	require.NoError(t, err)
	return r
}

// kinds are the different kinds of faults of a report in their order.
func kinds(r frame.Report) []frame.Kind {
	seen := []frame.Kind{}
	for _, f := range r.Faults {
		if len(seen) == 0 || seen[len(seen)-1] != f.Kind {
			seen = append(seen, f.Kind)
		}
	}
	return seen
}

func TestABundleOfAnyRangeVerifies(t *testing.T) {
	l := evidencetest.New(12)
	for first := uint64(1); first <= 12; first++ {
		for last := first; last <= 12; last++ {
			b := signed(t, l, first, last)
			r := verify(t, b, ours.Public())
			require.Equal(t, frame.OK, r.Status, "%d to %d: %v", first, last, r.Faults)
			require.Equal(t, []uint64{first, last, last - first + 1, last}, []uint64{r.FirstSeq, r.LastSeq, r.EventCount, r.VerifiedTo})
			require.Equal(t, frame.L4, r.AnchorLevel)
			again, ok := evidence.Again(b)
			require.True(t, ok)
			require.Equal(t, string(b), string(again))
		}
	}
}

func TestTheKeysOfABundleStandInTheOrderOfTheFormat(t *testing.T) {
	b := signed(t, evidencetest.New(4), 1, 4)
	dec := json.NewDecoder(bytes.NewReader(b))
	var keys []string
	_, err := dec.Token()
	require.NoError(t, err)
	for dec.More() {
		key, err := dec.Token()
		require.NoError(t, err)
		keys = append(keys, key.(string))
		var value json.RawMessage
		require.NoError(t, dec.Decode(&value))
	}
	assert.Equal(t, []string{"bundle_type", "log_id", "origin", "start_seq", "end_seq", "payload_count", "previous_hash", "first_event_hash", "last_event_hash",
		"genesis_header", "reason", "created_at", "signing", "signature", "checkpoint", "inclusion_proofs", "payloads"}, keys)
}

func TestTheSizeIsKnownBeforeTheFirstByte(t *testing.T) {
	l := evidencetest.New(5)
	for _, s := range []evidence.Signer{nil, evidencetest.Signer{Log: l, Key: ours}} {
		p, err := evidence.Prepare(context.Background(), l, request(2, 5), s)
		require.NoError(t, err)
		var b bytes.Buffer
		require.NoError(t, p.Write(context.Background(), &b))
		assert.EqualValues(t, b.Len(), p.Size())
	}
}

func TestWhoSignedIsSaid(t *testing.T) {
	l := evidencetest.New(6)
	unsigned := write(t, l, request(2, 5), nil)
	for _, c := range []struct {
		name   string
		bundle []byte
		keys   []checkpoint.PublicKey
		status frame.Status
		kinds  []frame.Kind
		level  frame.Level
		doubt  string
	}{
		{"with the key", signed(t, l, 2, 5), []checkpoint.PublicKey{theirs.Public(), ours.Public()}, frame.OK, []frame.Kind{}, frame.L4, "before event 2"},
		{"without a key", signed(t, l, 2, 5), nil, frame.OK, []frame.Kind{}, frame.NoAnchor, "signature: self-asserted"},
		{"unsigned, without a key", unsigned, nil, frame.OK, []frame.Kind{}, frame.NoAnchor, "signature: none"},
		{"unsigned, with a key", unsigned, []checkpoint.PublicKey{ours.Public()}, frame.Corruption, []frame.Kind{evidence.NoKeyInBundle}, frame.NoAnchor, ""},
		{"with another key", signed(t, l, 2, 5), []checkpoint.PublicKey{theirs.Public()}, frame.Corruption, []frame.Kind{evidence.BadSignature, evidence.BadCheckpoint}, frame.NoAnchor, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := verify(t, c.bundle, c.keys...)
			assert.Equal(t, c.status, r.Status, r.Faults)
			assert.Equal(t, c.kinds, kinds(r))
			assert.Equal(t, c.level, r.AnchorLevel)
			assert.Contains(t, strings.Join(r.NotExcluded, "; "), c.doubt)
		})
	}
}

// replace changes the one place where old stands.
func replace(t testing.TB, b []byte, old, new string) []byte {
	require.Equal(t, 1, bytes.Count(b, []byte(old)), "%q", old)
	return bytes.Replace(b, []byte(old), []byte(new), 1)
}

// Row 38 of the fault list: what an editor, a careless tool or a forger does.
func TestDamagedBundlesAreRefusedAndTheFailingItemIsNamed(t *testing.T) {
	l := evidencetest.New(6)
	good := signed(t, l, 2, 5)
	text := string(good)
	first := strings.Index(text, `{"seq":2,"previous_hash"`)
	second := strings.Index(text, `,{"seq":3,"previous_hash"`) + 1
	third := strings.Index(text, `,{"seq":4,"previous_hash"`) + 1
	require.True(t, first > 0 && second > first && third > second)
	swapped := text[:first] + text[second:third-1] + "," + text[first:second-1] + text[third-1:]
	removed := text[:second] + text[third:]
	older := write(t, l, request(2, 5), evidencetest.Signer{Log: l, Key: ours, Size: 5})
	proofs := func(s []byte) string {
		from := bytes.Index(s, []byte(`"inclusion_proofs"`))
		return string(s[from:bytes.Index(s, []byte(`,"payloads"`))])
	}
	for _, c := range []struct {
		name   string
		bundle []byte
		kind   frame.Kind
		seq    uint64
		detail string
	}{
		{"two records swapped", []byte(swapped), evidence.BadEnds, 0, ""},
		{"a record removed", []byte(removed), frame.BadSequence, 4, "event 4 stands where event 3 belongs"},
		{"the text of an event edited", replace(t, good, `SELECT '4 `, `SELECT '9 `), evidence.BadText, 4, "the readable event 4 is not that of its record"},
		{"proofs of another size", replace(t, good, proofs(good), proofs(older)), evidence.BadProof, 0, "is of a tree of 5 events, the checkpoint of one of 6"},
		{"a key added", replace(t, good, `,"reason":`, `,"note":"x","reason":`), evidence.BadForm, 0, `in the head: byte`},
		{"a key doubled", replace(t, good, `,"end_seq":5`, `,"end_seq":5,"end_seq":5`), evidence.BadForm, 0, `in the head: byte`},
		{"a key of a payload doubled", replace(t, good, `{"seq":4,"previous_hash"`, `{"seq":4,"seq":4,"previous_hash"`), evidence.BadForm, 0, "payload 3 (event 4)"},
		{"white space", replace(t, good, `,"end_seq":5`, `, "end_seq":5`), evidence.BadForm, 0, "in the head"},
		{"a newline at the end", append(bytes.Clone(good), '\n'), evidence.BadForm, 0, "follows the end"},
		{"another version", replace(t, good, "bundle.v1", "bundle.v2"), evidence.BadForm, 0, "is not known"},
		{"a number with a zero before it", replace(t, good, `"payload_count":4`, `"payload_count":04`), evidence.BadForm, 0, "not a whole number"},
		{"a count too high", replace(t, good, `"payload_count":4`, `"payload_count":5`), evidence.BadCount, 0, ""},
		{"another reason", replace(t, good, `"reason":"audit`, `"reason":"Audit`), evidence.BadSignature, 0, ""},
		{"cut short", good[:third+20], evidence.CutShort, 0, "payload 3 (event 4)"},
		{"cut short in the head", good[:100], evidence.CutShort, 0, "in the head"},
		{"empty", nil, evidence.CutShort, 0, "in the head"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := verify(t, c.bundle, ours.Public())
			want := frame.Corruption
			if c.kind == evidence.CutShort {
				want = frame.Partial
			}
			require.Equal(t, want, r.Status)
			for _, f := range r.Faults {
				if f.Kind == c.kind && f.Seq == c.seq || f.Kind == c.kind && c.seq == 0 {
					assert.Contains(t, f.Detail, c.detail)
					return
				}
			}
			t.Fatalf("no fault %s of event %d in %v", c.kind, c.seq, r.Faults)
		})
	}
}

func TestABundleWhoseEventsWereChainedAnewIsRefused(t *testing.T) {
	l, forged := evidencetest.New(6), evidencetest.New(3)
	for seq := uint64(4); seq <= 6; seq++ {
		d := evidencetest.Draft(seq)
		d.Context.Actor = "mallory"
		forged.Append(d)
	}
	honest := signed(t, l, 2, 5)
	made := write(t, forged, request(2, 5), nil)
	_, after, _ := bytes.Cut(made, []byte(`"payloads":`))
	before, _, _ := bytes.Cut(honest, []byte(`"payloads":`))
	r := verify(t, append(append(before, `"payloads":`...), after...), ours.Public())
	assert.Equal(t, frame.Corruption, r.Status)
	assert.Equal(t, []frame.Kind{evidence.BadEnds}, kinds(r), "the chain is whole, but it is not the one that was signed")
}

func TestTheGenesisHeaderHasToBeTheLogs(t *testing.T) {
	l := evidencetest.New(3)
	other := write(t, evidencetest.NewNamed("gate.elsewhere", 3), request(1, 3), nil)
	good := write(t, l, request(1, 3), nil)
	header := func(b []byte) string {
		_, after, _ := bytes.Cut(b, []byte(`"genesis_header":"`))
		text, _, _ := bytes.Cut(after, []byte(`"`))
		return string(text)
	}
	r := verify(t, replace(t, good, header(good), header(other)))
	assert.Equal(t, []frame.Kind{frame.BadHeader}, kinds(r))
	assert.Equal(t, frame.Corruption, r.Status)
	flipped := []byte(good)
	at := bytes.Index(flipped, []byte(`"genesis_header":"`)) + 2000
	flipped[at]++
	assert.Equal(t, []frame.Kind{frame.BadHeader}, kinds(verify(t, flipped)))
}

func TestEveryByteOfABundleIsJudged(t *testing.T) {
	good := signed(t, evidencetest.New(4), 2, 3)
	for at := range good {
		b := bytes.Clone(good)
		b[at] ^= 1
		r := verify(t, b, ours.Public())
		require.NotEqual(t, frame.OK, r.Status, "byte %d (%q) changed to %q", at, good[at], b[at])
	}
}

func TestEveryCutOfABundleIsPartialAndNeverOk(t *testing.T) {
	good := signed(t, evidencetest.New(4), 2, 3)
	for n := range good {
		r := verify(t, good[:n], ours.Public())
		require.Equal(t, frame.Partial, r.Status, "%d bytes: %v", n, r.Faults)
		require.Equal(t, []frame.Kind{evidence.CutShort}, kinds(r))
	}
}

func TestRandomEditsAreNeverOk(t *testing.T) {
	good := signed(t, evidencetest.New(6), 1, 6)
	rapid.Check(t, func(t *rapid.T) {
		from := rapid.IntRange(0, len(good)-1).Draw(t, "from")
		to := rapid.IntRange(from, min(from+40, len(good))).Draw(t, "to")
		put := rapid.SliceOfN(rapid.Byte(), 0, 12).Draw(t, "put")
		b := append(append(bytes.Clone(good[:from]), put...), good[to:]...)
		if bytes.Equal(b, good) {
			return
		}
		r, err := evidence.Verify(context.Background(), bytes.NewReader(b), evidence.Options{Keys: []checkpoint.PublicKey{ours.Public()}})
		if err != nil || r.Status == frame.OK {
			t.Fatalf("%v %v", r.Status, err)
		}
	})
}

func TestRequestsThatCanNotBeServedLeaveNothing(t *testing.T) {
	l := evidencetest.New(6)
	whole := int64(len(write(t, l, request(1, 6), nil)))
	for _, c := range []struct {
		name string
		edit func(*evidence.Request)
		want error
	}{
		{"from zero", func(q *evidence.Request) { q.First = 0 }, &evidence.RangeError{First: 0, Last: 6}},
		{"backwards", func(q *evidence.Request) { q.First, q.Last = 5, 4 }, &evidence.RangeError{First: 5, Last: 4}},
		{"a long reason", func(q *evidence.Request) { q.Reason = strings.Repeat("x", evidence.MaxReason+1) }, evidence.ErrReason},
		{"a reason that is no text", func(q *evidence.Request) { q.Reason = "\xff" }, evidence.ErrReason},
		{"beyond the log", func(q *evidence.Request) { q.Last = 7 }, evidence.ErrCorrupt},
	} {
		t.Run(c.name, func(t *testing.T) {
			q := request(1, 6)
			c.edit(&q)
			var b bytes.Buffer
			err := evidence.Write(context.Background(), &b, l, q, nil)
			require.Error(t, err)
			assert.True(t, errors.Is(err, c.want) || fmt.Sprint(err) == fmt.Sprint(c.want), "%v", err)
			assert.Empty(t, b.Bytes())
		})
	}
	q := request(1, 6)
	q.MaxBytes = whole
	_, err := evidence.Prepare(context.Background(), l, q, nil)
	assert.Error(t, err, "room for a signature is kept free")
	q.MaxBytes += 20 << 10
	_, err = evidence.Prepare(context.Background(), l, q, nil)
	assert.NoError(t, err)
}

func TestTheSuggestedEndFits(t *testing.T) {
	l := evidencetest.New(60)
	s := evidencetest.Signer{Log: l, Key: ours}
	for _, limit := range []evidence.Request{{MaxEvents: 7}, {MaxBytes: 40 << 10}, {MaxEvents: 50, MaxBytes: 50 << 10}} {
		q := request(3, 60)
		q.MaxEvents, q.MaxBytes = limit.MaxEvents, limit.MaxBytes
		_, err := evidence.Prepare(context.Background(), l, q, s)
		var large *evidence.TooLargeError
		require.ErrorAs(t, err, &large)
		require.Greater(t, large.SuggestedEnd, uint64(3))
		assert.EqualValues(t, 58, large.Events)
		for large.SuggestedEnd > 0 && err != nil {
			q.Last = large.SuggestedEnd
			if _, err = evidence.Prepare(context.Background(), l, q, s); err != nil {
				require.ErrorAs(t, err, &large)
				require.Less(t, large.SuggestedEnd, q.Last)
			}
		}
		assert.NoError(t, err)
	}
	q := request(3, 60)
	q.MaxBytes = 100
	_, err := evidence.Prepare(context.Background(), l, q, s)
	var large *evidence.TooLargeError
	require.ErrorAs(t, err, &large)
	assert.Zero(t, large.SuggestedEnd, "not even one event fits")
}

func TestADamagedRangeGivesNoBundle(t *testing.T) {
	for _, damage := range []func(*evidencetest.Log){
		func(l *evidencetest.Log) { l.At(3).Record = bytes.Clone(l.At(2).Record) },
		func(l *evidencetest.Log) { l.At(3).Seq = 4 },
		func(l *evidencetest.Log) { l.At(3).PreviousHash[0]++ },
		func(l *evidencetest.Log) { // another program's record, with a right hash
			f := l.At(5)
			f.Record = []byte{0x90}
			f.Hash = frame.EventHash(f.Seq, f.PreviousHash, f.Record)
		},
	} {
		l := evidencetest.New(5)
		damage(l)
		var b bytes.Buffer
		err := evidence.Write(context.Background(), &b, l, request(2, 5), nil)
		assert.ErrorIs(t, err, evidence.ErrCorrupt)
		assert.Zero(t, b.Len())
	}
}

// changing is a log that somebody writes anew between the two readings.
type changing struct {
	*evidencetest.Log
	reads int
	then  *evidencetest.Log
}

func (c *changing) Frames(ctx context.Context, first, last uint64) iter.Seq2[frame.Frame, error] {
	if c.reads++; c.reads > 1 {
		return c.then.Frames(ctx, first, last)
	}
	return c.Log.Frames(ctx, first, last)
}

func TestALogThatChangesBetweenTheReadingsGivesNoCompleteBundle(t *testing.T) {
	d := evidencetest.Draft(6)
	d.Context.Actor = "mallory"
	forged := evidencetest.New(5)
	forged.Append(d)
	var b bytes.Buffer
	err := evidence.Write(context.Background(), &b, &changing{Log: evidencetest.New(6), then: forged}, request(2, 6), nil)
	require.ErrorIs(t, err, evidence.ErrCorrupt)
	assert.Equal(t, frame.Partial, verify(t, b.Bytes()).Status)
}

// A signer that gives what its own verifier would refuse.
type wrongSigner struct {
	evidencetest.Signer
	sign  func([]byte) []byte
	prove func(checkpoint.Proof) checkpoint.Proof
}

func (s wrongSigner) Sign(m []byte) []byte {
	if s.sign != nil {
		return s.sign(m)
	}
	return s.Signer.Sign(m)
}

func (s wrongSigner) Prove(ctx context.Context, size, seq uint64) (checkpoint.Proof, error) {
	p, err := s.Signer.Prove(ctx, size, seq)
	if s.prove != nil {
		p = s.prove(p)
	}
	return p, err
}

func TestABundleThatItsOwnVerifierRefusesIsNotMade(t *testing.T) {
	l := evidencetest.New(6)
	s := evidencetest.Signer{Log: l, Key: ours}
	for _, wrong := range []evidence.Signer{
		wrongSigner{Signer: s, sign: theirs.Sign},
		wrongSigner{Signer: s, prove: func(p checkpoint.Proof) checkpoint.Proof { p[0][0]++; return p }},
		wrongSigner{Signer: s, prove: func(p checkpoint.Proof) checkpoint.Proof { return append(p, p[0]) }},
		evidencetest.Signer{Log: l, Key: ours, Size: 4},
		evidencetest.Signer{Log: evidencetest.NewNamed("gate.elsewhere", 6), Key: ours},
	} {
		_, err := evidence.Prepare(context.Background(), l, request(2, 5), wrong)
		assert.Error(t, err)
	}
}

func TestErrorsOfTheStreamAreNoVerdict(t *testing.T) {
	good := signed(t, evidencetest.New(4), 2, 3)
	for _, at := range []int{0, 100, len(good) - 10} {
		in := io.MultiReader(bytes.NewReader(good[:at]), iotest.ErrReader(io.ErrClosedPipe))
		_, err := evidence.Verify(context.Background(), in, evidence.Options{})
		assert.ErrorIs(t, err, io.ErrClosedPipe)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := evidence.Verify(ctx, bytes.NewReader(good), evidence.Options{})
	assert.ErrorIs(t, err, context.Canceled)
	assert.ErrorIs(t, evidence.Write(ctx, io.Discard, evidencetest.New(4), request(1, 4), nil), context.Canceled)
}

func TestABundleMayComeInPiecesOfAnySize(t *testing.T) {
	good := signed(t, evidencetest.New(4), 1, 4)
	for _, in := range []io.Reader{iotest.OneByteReader(bytes.NewReader(good)), iotest.DataErrReader(bytes.NewReader(good)), iotest.HalfReader(bytes.NewReader(good))} {
		r, err := evidence.Verify(context.Background(), in, evidence.Options{})
		require.NoError(t, err)
		assert.Equal(t, frame.OK, r.Status, r.Faults)
	}
}

// The signed text put together a second time, from the format page alone.
func TestTheSignedTextIsThatOfTheFormat(t *testing.T) {
	l := evidencetest.New(4)
	var b struct {
		LogID      string `json:"log_id"`
		Previous   string `json:"previous_hash"`
		First      string `json:"first_event_hash"`
		Last       string `json:"last_event_hash"`
		CreatedAt  string `json:"created_at"`
		Reason     string `json:"reason"`
		Checkpoint string `json:"checkpoint"`
		Signature  []byte `json:"signature"`
	}
	require.NoError(t, json.Unmarshal(signed(t, l, 2, 3), &b))
	text := strings.Join([]string{"gate.evidence_bundle.v1", b.LogID, "gate.example", "2", "3", "2", b.Previous, b.First, b.Last, b.CreatedAt,
		fmt.Sprintf("%x", sha256.Sum256([]byte(b.Reason))), fmt.Sprintf("%x", sha256.Sum256([]byte(b.Checkpoint))), ours.Public().ID(), ""}, "\n")
	assert.True(t, ours.Public().Verify([]byte(text), b.Signature))
}
