package projections_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"writegate/eventlog/event"
	"writegate/projections"
)

// scan answers an audit question the slow way: by looking at every event.
func (w *world) scan(f projections.AuditFilter, asc bool) []uint64 {
	var seqs []uint64
	for seq := uint64(1); seq <= uint64(w.log.Len()); seq++ {
		if e := w.log.At(seq); wants(&f, &e) {
			seqs = append(seqs, seq)
		}
	}
	if !asc {
		slices.Reverse(seqs)
	}
	return seqs
}

func wants(f *projections.AuditFilter, e *event.Envelope) bool {
	c := &e.Context
	for _, pair := range [][2]string{{f.Fingerprint, c.Fingerprint}, {f.Actor, c.Actor}, {f.App, c.App}, {f.Tenant, c.Tenant}, {f.Env, c.Env}, {f.Decision, c.Decision},
		{f.ApprovalID, c.ApprovalID}, {f.SessionID, c.SessionID}, {f.PolicyVersion, c.PolicyVersion}, {f.ExecutionID, c.ExecutionID}, {f.RequestID, c.RequestID}} {
		if pair[0] != "" && pair[0] != pair[1] {
			return false
		}
	}
	return (len(f.EventTypes) == 0 || slices.Contains(f.EventTypes, string(e.Type))) &&
		(f.FromSeq == 0 || e.Seq >= f.FromSeq) && (f.ToSeq == 0 || e.Seq <= f.ToSeq) &&
		(f.Since.IsZero() || !e.Time.Before(f.Since)) && (f.Until.IsZero() || e.Time.Before(f.Until))
}

// pages takes all pages of an answer.
func pages(t require.TestingT, v *projections.View, f projections.AuditFilter, page projections.Page) []uint64 {
	var all []uint64
	for {
		seqs, next, err := v.Audit(f, page)
		require.NoError(t, err)
		require.LessOrEqual(t, len(seqs), page.Limit)
		all = append(all, seqs...)
		if next == "" {
			return all
		}
		require.Len(t, seqs, page.Limit, "a page is full while there is a next one")
		page.Cursor = next
	}
}

func TestTheAuditIndexFindsWhatLookingAtEveryEventFinds(t *testing.T) {
	w := newWorld(t)
	w.scenario(11, 500)
	n := uint64(w.log.Len())
	require.Greater(t, n, uint64(5*512))
	first, last := w.log.At(1).Time, w.log.At(n).Time
	view := w.view()
	rapid.Check(t, func(t *rapid.T) {
		text := func(values ...string) string {
			return rapid.SampledFrom(append([]string{"", "", "", "nobody"}, values...)).Draw(t, "value")
		}
		moment := func() time.Time {
			if rapid.IntRange(0, 2).Draw(t, "timed") > 0 {
				return time.Time{}
			}
			return first.Add(time.Duration(rapid.Int64Range(-1e9, int64(last.Sub(first))+1e9).Draw(t, "moment")))
		}
		seq := func() uint64 { return rapid.OneOf(rapid.Just(uint64(0)), rapid.Uint64Range(1, n+10)).Draw(t, "seq") }
		some := w.log.At(rapid.Uint64Range(1, n).Draw(t, "some"))
		f := projections.AuditFilter{
			EventTypes: rapid.SliceOfN(rapid.SampledFrom([]string{"approval_created", "execution_success", "decision_recorded", "rate_limit_hit", "nothing"}), 0, 3).Draw(t, "types"),
			Actor:      text("actor1", "actor2"), App: text("app0"), Env: text("prod"), Decision: text("ALLOW", "BLOCK"), Fingerprint: text("f3"),
			RequestID: text(some.Context.RequestID), ExecutionID: text(some.Context.ExecutionID), ApprovalID: text(some.Context.ApprovalID),
			PolicyVersion: text("p@1.0.0"), Since: moment(), Until: moment(), FromSeq: seq(), ToSeq: seq(),
		}
		asc := rapid.Bool().Draw(t, "asc")
		page := projections.Page{Limit: rapid.IntRange(1, 700).Draw(t, "limit"), Asc: asc}
		require.Equal(t, w.scan(f, asc), pages(t, view, f, page), "%+v", f)
	})
}

func TestPagesAreStableWhileEventsCome(t *testing.T) {
	w := newWorld(t)
	w.scenario(3, 120)
	f := projections.AuditFilter{Env: "prod"}
	before := w.scan(f, false)
	got, next, err := w.view().Audit(f, projections.Page{Limit: 50})
	require.NoError(t, err)
	for next != "" {
		w.do(event.Context{Env: "prod"}, &event.HealthFail{})
		var seqs []uint64
		seqs, next, err = w.view().Audit(f, projections.Page{Limit: 50, Cursor: next})
		require.NoError(t, err)
		got = append(got, seqs...)
	}
	require.Equal(t, before, got)
}

func TestACursorIsBoundToItsQuestion(t *testing.T) {
	w := newWorld(t)
	w.scenario(3, 60)
	v := w.view()
	f := projections.AuditFilter{Env: "prod", EventTypes: []string{"request_received"}}
	_, next, err := v.Audit(f, projections.Page{Limit: 5})
	require.NoError(t, err)
	require.NotEmpty(t, next)
	_, _, err = v.Audit(projections.AuditFilter{Env: "prod"}, projections.Page{Limit: 5, Cursor: next})
	require.ErrorIs(t, err, projections.ErrCursor)
	_, _, err = v.Audit(f, projections.Page{Limit: 5, Cursor: next, Asc: true})
	require.ErrorIs(t, err, projections.ErrCursor)
	_, _, err = v.Executions(projections.ExecutionFilter{}, projections.Page{Cursor: next})
	require.ErrorIs(t, err, projections.ErrCursor)
	for _, bad := range []string{"x", "!!", next + "A", next[:len(next)-2], "AAAAAAAAAAAAAAAAAAAAAA"} {
		_, _, err = v.Audit(f, projections.Page{Limit: 5, Cursor: bad})
		require.ErrorIs(t, err, projections.ErrCursor, bad)
	}
	_, _, err = v.Audit(f, projections.Page{Limit: 7, Cursor: next})
	require.NoError(t, err, "the size of a page may change")
}

func TestValuesThatBeginWithEachOtherAreKeptApart(t *testing.T) {
	w := newWorld(t)
	values := []string{"a", "a\x00", "a\x00\x01", "a\x00\xff"[:2] + "b", "ab", "\x00", "é"}
	for i := range 512 + 5 {
		w.log.Append(t, event.New(w.now, event.Context{Actor: values[i%len(values)]}, &event.HealthFail{}))
	}
	require.NoError(t, w.store.WaitApplied(t.Context(), 512+5))
	for _, value := range values {
		f := projections.AuditFilter{Actor: value}
		require.Equal(t, w.scan(f, true), pages(t, w.view(), f, projections.Page{Asc: true, Limit: 1000}), "%q", value)
	}
}

func TestBlocksAreFoundAtTheirBorders(t *testing.T) {
	for _, n := range []int{1, 511, 512, 513, 1023, 1024, 1025, 1536} {
		w := newWorld(t)
		var drafts []event.Draft
		for i := range n {
			drafts = append(drafts, event.New(w.now, event.Context{Actor: fmt.Sprint(i % 3)}, &event.HealthFail{}))
		}
		w.append(drafts...)
		for _, asc := range []bool{true, false} {
			for _, f := range []projections.AuditFilter{{}, {Actor: "1"}, {Actor: "2", FromSeq: 512, ToSeq: 513}} {
				require.Equal(t, w.scan(f, asc), pages(t, w.view(), f, projections.Page{Limit: 400, Asc: asc}), "%d events", n)
			}
		}
		w.stop()
		w.start()
		require.Equal(t, w.scan(projections.AuditFilter{Actor: "1"}, false), pages(t, w.view(), projections.AuditFilter{Actor: "1"}, projections.Page{Limit: 400}), "%d events, after a restart", n)
		w.compare()
	}
}

func TestTheIndexAnswersOnlyWhenItIsConnected(t *testing.T) {
	w := newWorld(t)
	w.scenario(1, 20)
	w.stop()
	store, err := projections.Open(projections.Options{Dir: "store", FS: w.fs})
	require.NoError(t, err)
	defer store.Close()
	v := store.View()
	defer v.Close()
	require.Equal(t, uint64(w.log.Len()), v.Applied().Seq, "the anchor can be read before")
	_, _, err = v.Audit(projections.AuditFilter{}, projections.Page{})
	require.ErrorIs(t, err, projections.ErrNotConnected)
}

// What an event has of a field in its payload is found as what it has in its context,
// wherever its block stands, and by those who follow the log.
func TestTheAuditIndexFindsTagsAsLookingAtEveryEventDoes(t *testing.T) {
	w := newWorld(t)
	r := newRand(5)
	name := func(prefix string) string { return fmt.Sprint(prefix, r.IntN(6)) }
	for range 60 {
		var drafts []event.Draft
		for range 10 {
			w.now = w.now.Add(time.Duration(r.IntN(2000)-200) * time.Millisecond)
			ctx := event.Context{Project: name("p"), AgentID: name("agt_"), SessionID: name("ses_")}
			p := &event.TelemetryReceived{BatchID: "bat_x", Origin: event.Origin{CredentialIDs: []string{name("key_"), name("tok_")}}}
			for range r.IntN(8) {
				p.Events = append(p.Events, event.TelemetryEvent{ID: fmt.Sprint("e", r.Int64()), Type: name("type"), AgentID: name("agt_"), SessionID: name("ses_"), Tool: event.TelemetryTool{ID: name("tool_")}, Timestamp: w.now.UnixNano()})
				p.Outcomes = append(p.Outcomes, event.TelemetryOutcome{Status: event.TelemetryAccepted, Violations: []event.Violation{{PolicyID: name("pol_")}}})
			}
			drafts = append(drafts, event.New(w.now, ctx, p), event.New(w.now, ctx, &event.HealthFail{}))
		}
		w.append(drafts...)
	}
	w.compare()
	check := func(t *rapid.T) {
		text := func(prefix string) string {
			return rapid.SampledFrom([]string{"", "", "", prefix + "1", prefix + "2", prefix + "nobody"}).Draw(t, prefix)
		}
		f := projections.AuditFilter{Project: text("p"), AgentID: text("agt_"), SessionID: text("ses_"), CredentialID: text("tok_"), AgentPolicyID: text("pol_"), ToolID: text("tool_"),
			TelemetryType: text("type"), FromSeq: rapid.Uint64Range(0, 1300).Draw(t, "from"), Since: w.log.At(rapid.Uint64Range(1, 1200).Draw(t, "since")).Time}
		asc := rapid.Bool().Draw(t, "asc")
		var want []uint64
		for seq := uint64(1); seq <= uint64(w.log.Len()); seq++ {
			if e := w.log.At(seq); projections.Matches(f, &e) {
				want = append(want, seq)
			}
		}
		if !asc {
			slices.Reverse(want)
		}
		v := w.store.View()
		defer v.Close()
		require.Equal(t, want, pages(t, v, f, projections.Page{Limit: rapid.IntRange(1, 300).Draw(t, "limit"), Asc: asc}), "%+v", f)
	}
	rapid.Check(t, check)
	w.stop()
	w.start() // the last block is read from the log, its tags are not
	rapid.Check(t, check)
}
