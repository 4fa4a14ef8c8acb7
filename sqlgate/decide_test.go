package sqlgate

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"writegate/commands/fault"
	"writegate/eventlog/event"
	"writegate/fixtures/manualclock"
	"writegate/sqlgate/policy"
)

// A statement may wait for the parser, or for its turn in a session, and meanwhile
// another policy is activated: that one decides.
func TestADecisionIsOfThePolicyOfItsMoment(t *testing.T) {
	g := newWireWorld(t, nil).Gate
	r := &Request{RequestID: "req_1", SQL: "SELECT 1", Claims: Claims{Actor: "a", App: "app", Tenant: "t", Role: "r", Host: "h", Env: "prod"}}
	s := &submission{Request: r, policy: &runningPolicy{version: "gone@1.0.0"}, mode: ModeShadow}
	s.record = g.recordOf(r)
	var err error
	s.classification, err = g.Classifier.Classify(t.Context(), r.SQL)
	require.NoError(t, err)
	require.NoError(t, g.decide(t.Context(), s))
	require.Same(t, g.running.Load(), s.policy)
	require.Equal(t, g.ModeNow(), s.mode)
	require.Equal(t, s.policy.version, s.decision.PolicyVersion)
}

func TestABypassEndsOnce(t *testing.T) {
	clock := manualclock.At(time.Unix(1_000_000, 0))
	g := &Gate{Options: Options{Mode: ModeEmergencyBypass, BypassUntil: clock.Now().Add(time.Hour), Now: clock.Now}}
	require.Equal(t, ModeEmergencyBypass, g.ModeNow())
	clock.Advance(time.Hour)
	require.Equal(t, ModeEnforce, g.ModeNow())
	clock.Advance(-2 * time.Hour)
	require.Equal(t, ModeEnforce, g.ModeNow())
}

// While a decided statement waits for its connection another policy is activated:
// that one decides, and nothing is dispatched under the former.
func TestNothingIsDispatchedUnderAPolicyThatIsNotInForce(t *testing.T) {
	request := func(sql string) *Request {
		return &Request{RequestID: "req_1", SQL: sql, Claims: Claims{Actor: "a", App: "app", Tenant: "t", Role: "r", Host: "h", Env: "prod"}}
	}
	stricter := strings.NewReplacer("version: 1.0.0", "version: 1.0.1", "query_types: [TRUNCATE]", "query_types: [TRUNCATE, SELECT, INSERT, VACUUM]",
		"expect: { decision: ALLOW }", "expect: { decision: BLOCK }").Replace(wirePolicy)
	for name, sends := range map[string]func(t *testing.T, w *wireWorld, sql string){
		"POST /query": func(t *testing.T, w *wireWorld, sql string) {
			a, err := w.Submit(t.Context(), request(sql))
			require.NoError(t, err)
			require.False(t, a.Executed)
			require.Equal(t, "BLOCK", string(a.Result.Decision))
		},
		"a Query": func(t *testing.T, w *wireWorld, sql string) {
			require.Equal(t, "BLOCK", state(w.wire().refused(sql)))
		},
		"a block": func(t *testing.T, w *wireWorld, sql string) {
			c := w.wire()
			c.query("BEGIN")
			require.Equal(t, "BLOCK", state(c.refused(sql)))
			c.query("ROLLBACK")
		},
	} {
		for _, sql := range []string{"INSERT INTO t VALUES (1)", "SELECT id FROM t", "VACUUM t"} {
			if name == "a block" && sql == "VACUUM t" { // is refused there before anything is recorded
				continue
			}
			t.Run(name+" "+sql, func(t *testing.T) {
				w := newWireWorld(t, nil)
				var once sync.Once
				w.stops.Store("decision.before_append", func() {
					once.Do(func() { w.activate(stricter) })
				})
				sends(t, w, sql)
				require.Equal(t, "0", w.value("SELECT count(*) FROM t"))
				for _, line := range w.trail() {
					require.NotContains(t, line, "dispatched")
				}
			})
		}
	}
}

// A write that the stricter policy lets pass too runs in the block in which it waited,
// under that policy.
func TestAStatementThatIsDecidedAnewStillRuns(t *testing.T) {
	w := newWireWorld(t, nil)
	c := w.wire()
	c.query("BEGIN")
	var once sync.Once
	w.stops.Store("decision.before_append", func() {
		once.Do(func() { same := *w.running.Load(); w.running.Store(&same) })
	})
	c.query("INSERT INTO t VALUES (1)")
	c.query("COMMIT")
	require.Equal(t, "1", w.value("SELECT count(*) FROM t"))
	require.Equal(t, []string{"INSERT dispatched", "INSERT success"}, w.trail())
}

// Who could not send a request any more when it has waited is refused with evidence.
func TestARequestIsNotSentForWhoDoesNotStandAnyMore(t *testing.T) {
	w := newWireWorld(t, nil)
	gone := false
	w.stops.Store("decision.before_append", func() { gone = true })
	for _, sql := range []string{"INSERT INTO t VALUES (1)", "SELECT id FROM t", "VACUUM t"} {
		gone = false
		_, err := w.Submit(t.Context(), &Request{RequestID: "req_1", SQL: sql, Claims: Claims{Actor: "a", App: "app", Tenant: "t", Role: "r", Host: "h", Env: "prod"}, Stands: func() error {
			if gone {
				return fault.New(fault.CredentialsInvalid, "gone")
			}
			return nil
		}})
		require.Equal(t, fault.CredentialsInvalid, fault.CodeOf(err), sql)
	}
	require.Equal(t, "0", w.value("SELECT count(*) FROM t"))
	require.Empty(t, w.trail(), "nothing was dispatched")
	require.Len(t, slices.DeleteFunc(w.events(), func(e event.Envelope) bool { return e.Type != event.TypeQueryRejected }), 3)
}

// What was refused before anybody decided was not let through.
func TestARefusalIsNoDecisionThatWasNotEnforced(t *testing.T) {
	m := newMeters()
	for _, s := range []submission{{}, {enforced: true, result: policy.Result{Decision: policy.Block}}, {unknown: errors.New("not known"), result: policy.Result{Decision: policy.Block}}} {
		m.decided(&s)
	}
	require.Zero(t, m.snapshot().Unenforced)
	m.decided(&submission{result: policy.Result{Decision: policy.Block}})
	require.EqualValues(t, 1, m.snapshot().Unenforced)
}
