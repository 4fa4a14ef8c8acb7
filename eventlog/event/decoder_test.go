package event

import (
	"bytes"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// requireSameDecoded holds a Decoder against Decode, whatever the bytes are, and
// gives what the Decoder gave.
func requireSameDecoded(t require.TestingT, m *Decoder, record []byte) Draft {
	want, wrong := Decode(record)
	given := bytes.Clone(record)
	got := Draft{Type: "of before", Context: Context{Actor: "of before"}, Payload: Payload{{Key: "of before"}}, packed: "of before"}
	err := m.Decode(given, &got)
	clear(given) // nothing may point into it
	require.Equal(t, wrong, err)
	require.Equal(t, want, unpacked(got))
	if err != nil {
		require.Equal(t, Draft{}, got)
		return got
	}
	require.Nil(t, got.Payload)
	again, err := Encode(nil, &got)
	require.NoError(t, err)
	require.Equal(t, record, again)
	require.Equal(t, AppendJSON(nil, &Envelope{Draft: want}), AppendJSON(nil, &Envelope{Draft: got}))
	requireSameGot(t, &want, &got)
	requireSameOpened(t, &want, &got)
	bare := got.With(nil)
	require.Empty(t, bare.Fields(), "another payload, and be it none, leaves nothing of the first")
	return got
}

// unpacked is the draft that Decode gives for d.
func unpacked(d Draft) Draft {
	return d.With(d.Fields())
}

func allUnpacked(list []Draft) (out []Draft) {
	for _, d := range list {
		out = append(out, unpacked(d))
	}
	return out
}

// requireSameGot looks for every key, and for those beside it.
func requireSameGot(t require.TestingT, want, got *Draft) {
	keys := []string{"", "policy_id", "\xff"}
	for _, f := range want.Payload {
		keys = append(keys, f.Key, f.Key+"\x00", f.Key[:len(f.Key)/2])
	}
	for _, key := range keys {
		v, ok := want.Payload.Get(key)
		gotV, gotOK := got.Get(key)
		require.Equal(t, ok, gotOK, key)
		require.Equal(t, v, gotV, key)
	}
}

// requireSameOpened reads the Go struct of the draft's type, from the fields and
// from the bytes, errors and all.
func requireSameOpened(t require.TestingT, want, got *Draft) {
	a, wrong := Open(want)
	b, err := Open(got)
	require.Equal(t, fmt.Sprint(wrong), fmt.Sprint(err))
	require.Equal(t, a, b)
}

// texts collects what may be kept for good.
func texts(d *Draft) []string {
	out := []string{string(d.Type)}
	for n := 1; n <= contextFields; n++ {
		out = append(out, *d.Context.at(n))
	}
	return append(out, textsIn(d.Fields())...)
}

func textsIn(p Payload) (out []string) {
	for i := range p {
		out = append(out, p[i].Key, p[i].Value.text)
		out = append(out, textsIn(p[i].Value.kids)...)
	}
	return out
}

func TestADecoderGivesWhatDecodeGivesAndDisturbsNothingItGaveBefore(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var m Decoder
		var given, wanted []Draft
		var kept, wantKept [][]string // texts, for good
		var contexts []Context
		for range rapid.IntRange(1, 60).Draw(t, "records") {
			d := drawDraft(t)
			if len(contexts) > 0 && rapid.Bool().Draw(t, "of the same statement") {
				d.Context = rapid.SampledFrom(contexts[max(0, len(contexts)-3):]).Draw(t, "context")
				for range rapid.IntRange(0, 2).Draw(t, "changes") {
					n, other := rapid.IntRange(1, contextFields).Draw(t, "field"), drawDraft(t)
					*d.Context.at(n) = rapid.SampledFrom([]string{"", "a", "other", *other.Context.at(n)}).Draw(t, "value")
				}
			}
			contexts = append(contexts, d.Context)
			record := mustEncode(t, &d)
			if rapid.IntRange(0, 9).Draw(t, "cut short") == 0 {
				record = record[:rapid.IntRange(0, len(record)-1).Draw(t, "length")]
			} else if rapid.IntRange(0, 9).Draw(t, "damaged") == 0 {
				record[rapid.IntRange(0, len(record)-1).Draw(t, "at")] = rapid.Byte().Draw(t, "byte")
			}
			want, _ := Decode(record)
			given, wanted = append(given, requireSameDecoded(t, &m, record)), append(wanted, want)
			kept, wantKept = append(kept, texts(&given[len(given)-1])), append(wantKept, texts(&want))
			if rapid.IntRange(0, 20).Draw(t, "reset") == 0 {
				m.Reset()
			}
		}
		require.Equal(t, wanted, allUnpacked(given), "what was given outlasts what comes after it, and a Reset")
		require.Equal(t, wantKept, kept, "texts outlast a Reset")
	})
}

func TestADecoderTakesRecordsOfAllSizes(t *testing.T) {
	var m Decoder
	var given, wanted []Draft
	for round := range 3 {
		for _, n := range []int{0, 1, roomAhead, roomAhead + 1, 15, 16, 511, 512, 2560} {
			items, fields := make([]Value, n), make([]Field, n)
			for i := range n {
				items[i], fields[i] = Int(int64(i)), Field{Key: fmt.Sprintf("%06d", i), Value: Strings([]string{"a", "b"})}
			}
			for _, size := range []int{0, 1, textsSize / 4, textsSize/4 + 1, 3 * textsSize} {
				d := Draft{Type: "t", TypeVersion: 1, Time: time.Unix(0, 1).UTC(),
					Payload: NewPayload(Field{"fields", Map(fields...)}, Field{"items", List(items...)}, Field{"text", String(strings.Repeat("x", size))})}
				given, wanted = append(given, requireSameDecoded(t, &m, mustEncode(t, &d))), append(wanted, d)
			}
		}
		require.Equal(t, wanted, allUnpacked(given), "round %d", round)
		m.Reset()
	}
}

// The cache of ids has fewer places than there are ids, and one id may stand in
// several fields, with another prefix in each.
func TestADecoderMixesUpNoIDs(t *testing.T) {
	var m Decoder
	at := time.Unix(0, goldenTime)
	for i := range 40 * idsKept {
		var id ID
		id[0], id[15] = byte(i/3), byte(i)
		d := New(at, Context{RequestID: prefixed(prefixRequest, id), ApprovalID: prefixed(prefixApproval, id), ExecutionID: prefixed(prefixExecution, id), AgentID: prefixed(prefixAgent, id)}, &HealthFail{})
		require.Equal(t, d.Context, requireSameDecoded(t, &m, mustEncode(t, &d)).Context)
	}
}

func TestADecoderAllocatesOnceForManyRecords(t *testing.T) {
	var m Decoder
	var into Draft
	d := decisionDraft()
	record := mustEncode(t, &d)
	perRound := testing.AllocsPerRun(20, func() {
		for range 100 {
			require.NoError(t, m.Decode(record, &into))
		}
		m.Reset()
	})
	require.LessOrEqual(t, perRound, 4.0, "allocations of 100 records")
}

// Who keeps the contexts of large records, as the index does, does not keep the records.
func TestATextOfAContextKeepsNoLargeRecord(t *testing.T) {
	var m Decoder
	var kept [200]Draft
	heap := func() uint64 {
		var stats runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&stats)
		return stats.HeapAlloc
	}
	before := heap()
	for i := range kept {
		d := New(time.Unix(1735689600, 0), Context{Actor: fmt.Sprint("a", i), Project: "p", RequestID: "req_1"}, &TelemetryReceived{BatchID: "bat_x",
			Events: []TelemetryEvent{{ID: "e", Type: "t", AgentID: "agt_1", Attributes: strings.Repeat("a", 500<<10)}}})
		record, err := Encode(nil, &d)
		require.NoError(t, err)
		got := requireSameDecoded(t, &m, record)
		kept[i] = Draft{Type: got.Type, Context: got.Context}
	}
	require.Less(t, heap(), before+10<<20)
	require.Equal(t, "a199", kept[199].Context.Actor)
	require.Equal(t, TypeTelemetryReceived, kept[0].Type)
}
