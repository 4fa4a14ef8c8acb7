package projections

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"writegate/eventlog/event"
	"writegate/fixtures/filled"
)

// searched are the tags of an event of any type: it looks for every key that could
// hold one.
func searched(e *event.Envelope) []tag {
	var t tags
	p := e.Fields()
	t.layer(e)
	t.tables(e)
	t.telemetry(p)
	t.usage(p)
	t.text(p, fieldCredential, "credential_ids")
	t.origin(e)
	if _, ok := p.Get("origin"); ok { // else a policy_id or a tool_id is another one, as those of a policy's version are
		t.text(p, fieldAgentPolicy, "policy_id")
		t.text(p, fieldTool, "tool_id")
	}
	return t.list
}

// both are an event as From gives it, and as Chunks does.
func both(t *testing.T, p event.Typed) []event.Envelope {
	d := event.New(time.Unix(1735689600, 0).UTC(), event.Context{Actor: "svc"}, p)
	record, err := event.Encode(nil, &d)
	require.NoError(t, err)
	var read event.Draft
	require.NoError(t, new(event.Decoder).Decode(record, &read))
	require.Nil(t, read.Payload)
	return []event.Envelope{{Draft: d}, {Draft: read}}
}

func TestNoTypeThatHasTagsIsForgotten(t *testing.T) {
	having := 0
	for _, s := range event.Types() {
		p := s.New()
		filled.Struct(p, 0)
		for i, e := range both(t, p) {
			want := searched(&e)
			require.Equal(t, want, tagsOf(&e), "%s: add it to tagsOf", s.Type)
			having += min(len(want), 1) * (1 - i)
		}
		for _, e := range both(t, s.New()) {
			require.Empty(t, tagsOf(&e), s.Type)
		}
	}
	require.Equal(t, 18, having, "types that have tags")
}

// searched could itself forget a key: a name that promises a tag has one.
func TestNoKeyThatNamesATagIsForgotten(t *testing.T) {
	for _, s := range event.Types() {
		p := s.New()
		filled.Struct(p, 0)
		for _, f := range p.Fields() {
			named := f.Key == "origin" && f.Value.Kind() == event.KindMap || strings.HasPrefix(f.Key, "credential") || f.Key == "policy_id" || f.Key == "tool_id" || f.Key == "agent_layer"
			e := both(t, p)[1]
			require.False(t, named && len(tagsOf(&e)) == 0, "%s has %s", s.Type, f.Key)
		}
	}
}

func TestTheEventsOfAPlainWriteHaveNoTagsAndTakeNoMemoryForThem(t *testing.T) {
	for _, p := range []event.Typed{&event.RequestReceived{SQLBytes: 200}, &event.DecisionRecorded{Enforced: true, RuleID: "app-dml", Run: "transaction"},
		&event.ExecutionDispatched{Path: event.PathTx}, &event.ExecutionSuccess{CommandTag: "INSERT 0 1"}} {
		e := both(t, p)[1]
		require.Zero(t, testing.AllocsPerRun(100, func() { require.Nil(t, tagsOf(&e)) }), e.Type)
	}
}
