package event

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// placed is a draft in a chain, as a reader of the log gets it.
func placed(t *testing.T, d Draft) Envelope {
	t.Helper()
	prev := [32]byte{7}
	return Envelope{Seq: 5, PreviousHash: prev, Hash: eventHash(5, prev, mustEncode(t, &d)), Draft: d}
}

// seenByAll is what a stranger is given of e, read back from its text.
func seenByAll(t *testing.T, e Envelope) Envelope {
	t.Helper()
	open, ok := e.WithoutData()
	require.True(t, ok)
	e.Draft = open
	seen, err := ParseJSON(AppendJSON(nil, &e))
	require.NoError(t, err)
	return seen
}

// triedAt tells whether the field, in the place of what was left out, gives the hash
// that is shown.
func triedAt(t *testing.T, seen *Envelope, guess Field) bool {
	t.Helper()
	known := slices.DeleteFunc(slices.Clone(seen.Fields()), func(f Field) bool {
		return f.Key == guess.Key || strings.HasSuffix(f.Key, "_withheld")
	})
	d := seen.With(NewPayload(append(known, guess)...))
	return eventHash(seen.Seq, seen.PreviousHash, mustEncode(t, &d)) == seen.Hash
}

// What is withheld has few possible values: a number of rows, an answer of one
// number, a text that quotes a short word.
func TestAWithheldValueIsNotFoundByTryingIt(t *testing.T) {
	at := time.Unix(0, goldenTime).UTC()
	answer := func(n int) *Answer { return &Answer{Status: 200, Body: fmt.Sprintf(`{"rows":[{"count":%d}]}`, n)} }
	inAnswer := func(n int) Field {
		a := answer(n)
		return Field{"answer", mapOf(write(2, a.form))}
	}
	for name, c := range map[string]struct {
		holding func(n int) Typed
		guess   func(n int) Field
	}{
		"a plan estimate": {
			func(n int) Typed { return &ApprovalCreated{SQL: "DELETE", Impact: fmt.Sprintf(`{"rows":%d}`, n)} },
			func(n int) Field { return Field{"impact", String(fmt.Sprintf(`{"rows":%d}`, n))} },
		},
		"a bound subject": {
			func(n int) Typed { return &AgentSubjectBound{SubjectID: "sub_1", Subject: fmt.Sprintf("auth0|%d", n)} },
			func(n int) Field { return Field{keySubject, String(fmt.Sprintf("auth0|%d", n))} },
		},
		"rows":               {func(n int) Typed { return &ExecutionSuccess{Answer: answer(n)} }, inAnswer},
		"rows of a failure":  {func(n int) Typed { return &ExecutionFailure{Outcome: OutcomeAborted, Answer: answer(n)} }, inAnswer},
		"rows of an unknown": {func(n int) Typed { return &ExecutionStateUnknown{Cause: "timeout", Answer: answer(n)} }, inAnswer},
		"the view of a small database": {
			func(n int) Typed {
				return &CatalogRecorded{Content: fmt.Appendf(nil, "{\"view\":\"SELECT %d\"}", n), Part: 1, Parts: 1}
			},
			func(n int) Field { return Field{"content", Bytes(fmt.Appendf(nil, "{\"view\":\"SELECT %d\"}", n))} },
		},
		"a key": {
			func(n int) Typed { return &RequestReceived{IdempotencyKey: fmt.Sprintf("order-%d", n)} },
			func(n int) Field { return Field{"idempotency_key", String(fmt.Sprintf("order-%d", n))} },
		},
		"a key that is carried out": {
			func(n int) Typed {
				return &ExecutionDispatched{Path: PathTx, Upstream: Upstream{Host: "db", Role: "app"}, Idempotency: &Idempotency{Key: fmt.Sprint(n)}}
			},
			func(n int) Field {
				i := Idempotency{Key: fmt.Sprint(n)}
				return Field{"idempotency", mapOf(write(4, i.form))}
			},
		},
		"what the database said": {func(n int) Typed {
			return &ExecutionFailure{Outcome: OutcomeAborted, Message: fmt.Sprintf("bad: %d", n)}
		}, func(n int) Field { return Field{"message", String(fmt.Sprintf("bad: %d", n))} }},
	} {
		const secret, most = 37, 100
		unsalted := c.holding(secret)
		old := placed(t, Draft{ID: NewID(at), Type: unsalted.EventType(), TypeVersion: 1, Time: at, Payload: unsalted.Fields()})
		written := placed(t, New(at, Context{}, c.holding(secret)))
		found := map[bool][]int{}
		for n := range most {
			for salted, e := range map[bool]Envelope{false: old, true: written} {
				if seen := seenByAll(t, e); triedAt(t, &seen, c.guess(n)) {
					found[salted] = append(found[salted], n)
				}
			}
		}
		require.Equal(t, []int{secret}, found[false], "%s: the guesser finds it in an event without a salt", name)
		require.Empty(t, found[true], name)

		open := seenByAll(t, written)
		_, shown := open.Get(keySalt)
		require.False(t, shown, name)
		whole, err := ParseJSON(AppendJSON(nil, &written))
		require.NoError(t, err)
		require.Equal(t, whole.Hash, eventHash(whole.Seq, whole.PreviousHash, mustEncode(t, &whole.Draft)), "%s: the whole view is what the hash covers", name)
	}
}

// Whatever WithoutData leaves out of an event of any type, New salts.
func TestWhatIsWithheldIsSalted(t *testing.T) {
	var salted []Type
	for _, s := range Types() {
		p := filledOf(s)
		unsalted := reflect.ValueOf(p).Elem().FieldByName("Salt")
		if unsalted.IsValid() {
			unsalted.SetZero()
		}
		e := envelopeOf(p, s.Version)
		open, holds := e.WithoutData()
		if !holds {
			require.False(t, unsalted.IsValid(), s.Type)
			continue
		}
		salted = append(salted, s.Type)
		require.NotEqual(t, e.Fields(), open.Fields(), s.Type)
		one, other := New(e.Time, e.Context, p), New(e.Time, e.Context, p)
		first, ok := one.Get(keySalt)
		require.True(t, ok, s.Type)
		second, _ := other.Get(keySalt)
		require.Equal(t, first, second, "%s: a payload keeps its salt", s.Type)

		unsalted.SetZero()
		anew := New(e.Time, e.Context, p)
		third, _ := anew.Get(keySalt)
		require.NotEqual(t, first, third, s.Type)
	}
	require.Equal(t, []Type{TypeCatalogRecorded, TypeRequestReceived, TypeApprovalCreated, TypeExecutionDispatched, TypeExecutionSuccess, TypeExecutionFailure, TypeExecutionStateUnknown, TypeAgentTokenIssued, TypeAgentSubjectBound}, salted)

	for _, p := range []Typed{new(CatalogRecorded), new(RequestReceived), new(ApprovalCreated), new(ExecutionDispatched), new(ExecutionSuccess), new(ExecutionFailure), new(ExecutionStateUnknown), new(AgentTokenIssued), new(AgentSubjectBound)} {
		d := New(time.Unix(0, goldenTime), Context{}, p)
		_, there := d.Get(keySalt)
		require.False(t, there, "%s without anything to withhold", p.EventType())
	}
}

// An answer of the gate's own words is shown whole, so that its event can be verified.
func TestWhatIsShownWholeKeepsItsSalt(t *testing.T) {
	d := New(time.Unix(0, goldenTime), Context{}, &ExecutionSuccess{Answer: &Answer{Status: 200, Body: `{"rows":[]}`}})
	open, withheld := d.WithoutData()
	require.False(t, withheld)
	require.Equal(t, d, open)
	_, there := open.Get(keySalt)
	require.True(t, there)
}
