package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"writegate/eventlog"
	"writegate/eventlog/event"
	"writegate/eventlog/frame"
	"writegate/eventlog/frame/frametest"
	"writegate/sqlgate/policy"
)

// A replayReport is the replay of an answer (design/policy.md part 8).
type replayReport struct {
	FromSeq         uint64  `json:"from_seq"`
	ToSeq           uint64  `json:"to_seq"`
	Evaluated       int     `json:"evaluated"`
	Unreplayable    int     `json:"unreplayable"`
	RecordedDiffers int     `json:"recorded_differs"`
	Changed         int     `json:"changed"`
	Complete        bool    `json:"complete"`
	ImpactHash      *string `json:"impact_hash"`
	Transitions     []struct {
		From    string         `json:"from"`
		To      string         `json:"to"`
		Count   int            `json:"count"`
		ByRule  map[string]int `json:"by_rule"`
		Samples []struct {
			EventID     string `json:"event_id"`
			Seq         uint64 `json:"seq"`
			Fingerprint string `json:"fingerprint"`
		} `json:"samples"`
	} `json:"transitions"`
}

// askedNotes is a version in which open notes ask a person.
func askedNotes(version string) string {
	return strings.Replace(notesVersion(version), "decision: ALLOW", "decision: REQUIRE_APPROVAL", 1)
}

// replayOf is the replay of a diff or a dry run that must answer 200.
func (g *testGate) replayOf(t testing.TB, path string, body map[string]any) replayReport {
	t.Helper()
	r := g.operate(t, path, body)
	require.Equal(t, http.StatusOK, r.status, "%s", r.body)
	var answer struct {
		Replay replayReport `json:"replay"`
	}
	unmarshal(t, r.body, &answer)
	return answer.Replay
}

// head is the last event of the log.
func (g *testGate) head(t testing.TB) uint64 {
	t.Helper()
	return uint64(g.get(t, "/health").json(t)["log"].(map[string]any)["seq"].(float64))
}

// decideSome lets the gate decide: 3 open notes, 2 closed ones, 4 reads. It gives
// the sequence numbers of the decisions on open notes.
func (g *testGate) decideSome(t testing.TB) (open []uint64) {
	t.Helper()
	for n := range 3 {
		r := g.query(t, insertOpen(fmt.Sprint("note ", n)))
		require.Equal(t, http.StatusOK, r.status, "%s", r.body)
		for _, e := range r.json(t)["events"].([]any) {
			if e := e.(map[string]any); e["event_type"] == "decision_recorded" {
				open = append(open, uint64(e["seq"].(float64)))
			}
		}
	}
	for range 2 {
		require.Equal(t, http.StatusForbidden, g.query(t, ask("INSERT INTO closed_notes VALUES ('x')")).status)
	}
	for range 4 {
		require.Equal(t, http.StatusOK, g.query(t, ask("SELECT 1")).status)
	}
	return open
}

// TestAReplaySaysWhatAnotherVersionWouldHaveDecided replays the log in all the
// ways there are, and binds an activation to what it showed.
func TestAReplaySaysWhatAnotherVersionWouldHaveDecided(t *testing.T) {
	t.Parallel()
	g := startGate(t, newNotes(t), append([]string{"GATE_POLICY_REQUIRE_IMPACT=true"}, patience...)...)
	open := g.decideSome(t)
	hash := g.propose(t, askedNotes("2.0.0"))
	before := g.head(t)
	diff := func(replay map[string]any) replayReport {
		return g.replayOf(t, "/policy/diff", map[string]any{"base": "active", "target": "notes@2.0.0", "replay": replay})
	}

	all := diff(map[string]any{"last": "24h"})
	require.Equal(t, 9, all.Evaluated)
	require.Equal(t, 3, all.Changed)
	require.Zero(t, all.RecordedDiffers)
	require.Zero(t, all.Unreplayable)
	require.True(t, all.Complete)
	require.Len(t, *all.ImpactHash, 64)
	require.Len(t, all.Transitions, 1)
	change := all.Transitions[0]
	require.Equal(t, [2]string{"ALLOW", "REQUIRE_APPROVAL"}, [2]string{change.From, change.To})
	require.Equal(t, map[string]int{"open-notes": 3}, change.ByRule)
	require.Equal(t, 3, change.Count)
	for i, s := range change.Samples {
		require.Equal(t, open[i], s.Seq)
		item := g.get(t, fmt.Sprintf("/audit?from_seq=%d&to_seq=%d", s.Seq, s.Seq)).json(t)["items"].([]any)[0].(map[string]any)
		require.Equal(t, item["event_id"], s.EventID)
		require.Equal(t, item["fingerprint"], s.Fingerprint)
	}

	some := diff(map[string]any{"from_seq": open[1], "to_seq": open[2]})
	require.Equal(t, 2, some.Changed)
	require.Equal(t, open[1], some.FromSeq)
	require.Equal(t, open[2], some.ToSeq)
	require.Equal(t, before, diff(map[string]any{"from_seq": 1, "to_seq": 1 << 40}).ToSeq, "there is no more than there is")
	newest := diff(map[string]any{"from_seq": 1, "limit": 7})
	require.Equal(t, 7, newest.Evaluated, "newest first")
	require.Equal(t, open[2], newest.FromSeq, "the range is the one that was looked at")
	require.Equal(t, newest, diff(map[string]any{"from_seq": newest.FromSeq, "to_seq": newest.ToSeq}), "and gives the same again")
	none := diff(map[string]any{"last": "1ns"})
	require.Zero(t, none.Evaluated)
	require.True(t, none.Complete)

	dry := g.replayOf(t, "/policy/dry-run", map[string]any{"policy_version": "notes@2.0.0", "replay": map[string]any{"last": "24h"}})
	require.Equal(t, all, dry, "the base of a dry run is the active version")
	same := g.replayOf(t, "/policy/dry-run", map[string]any{"policy_version": "notes@2.0.0", "compare_to": "notes@2.0.0", "replay": map[string]any{"last": "24h"}})
	require.Zero(t, same.Changed)
	require.Equal(t, 3, same.RecordedDiffers, "the base decides otherwise than the record says")
	require.Equal(t, before, g.head(t), "nothing of this is written")

	activate := map[string]any{"policy_version": "notes@2.0.0", "expected_hash": hash}
	r := g.operate(t, "/policy/activate", activate)
	require.Equal(t, http.StatusBadRequest, r.status, "the impact is required here")
	require.Contains(t, r.json(t)["details"].(map[string]any)["fields"], "impact")
	activate["impact"] = map[string]any{"from_seq": some.FromSeq, "to_seq": some.ToSeq, "impact_hash": *all.ImpactHash}
	r = g.operate(t, "/policy/activate", activate)
	require.Equal(t, http.StatusConflict, r.status)
	require.Equal(t, "impact_mismatch", r.json(t)["details"].(map[string]any)["reason"])
	require.Equal(t, before, g.head(t))
	activate["impact"] = map[string]any{"from_seq": all.FromSeq, "to_seq": all.ToSeq, "impact_hash": "sha256:" + strings.ToUpper(*all.ImpactHash)}
	r = g.operate(t, "/policy/activate", activate)
	require.Equal(t, http.StatusOK, r.status, "%s", r.body)
	require.Equal(t, http.StatusOK, g.operate(t, "/policy/rollback", map[string]any{}).status, "a way back needs none")
	g.end(t)
	impacts := 0
	for _, e := range g.events(t) {
		var p event.PolicyActivated
		if e.Type != event.TypePolicyActivated || e.Context.PolicyVersion != "notes@2.0.0" {
			continue
		}
		require.NoError(t, e.Parse(&p))
		require.Equal(t, [2]uint64{all.FromSeq, all.ToSeq}, [2]uint64{p.Impact.FromSeq, p.Impact.ToSeq})
		require.Equal(t, *all.ImpactHash, fmt.Sprintf("%x", p.Impact.ImpactHash))
		impacts++
	}
	require.Equal(t, 1, impacts)
}

func TestAReplayThatCannotBeReadIsRefused(t *testing.T) {
	t.Parallel()
	g := startGate(t, newNotes(t), patience...)
	for name, c := range map[string]struct {
		replay string
		code   string
		field  string
	}{
		"nothing":             {`{}`, "validation_failed", "replay"},
		"both":                {`{"last":"1h","from_seq":1}`, "validation_failed", "replay"},
		"an end alone":        {`{"to_seq":5}`, "validation_failed", "replay"},
		"no duration":         {`{"last":"yesterday"}`, "validation_failed", "replay.last"},
		"a duration backward": {`{"last":"-1h"}`, "validation_failed", "replay.last"},
		"no time at all":      {`{"last":"0s"}`, "validation_failed", "replay.last"},
		"an end too early":    {`{"from_seq":5,"to_seq":4}`, "validation_failed", "replay.to_seq"},
		"no limit":            {`{"last":"1h","limit":0}`, "validation_failed", "replay.limit"},
		"over the limit":      {`{"last":"1h","limit":100001}`, "validation_failed", "replay.limit"},
		"below zero":          {`{"from_seq":-1}`, "invalid_json", ""},
		"an unknown field":    {`{"first":"1h"}`, "invalid_json", ""},
	} {
		t.Run(name, func(t *testing.T) {
			for path, body := range map[string]string{
				"/policy/diff":    `{"base":"active","target":"active","replay":%s}`,
				"/policy/dry-run": `{"replay":%s}`,
			} {
				r := g.do(t, http.MethodPost, path, fmt.Appendf(nil, body, c.replay))
				require.Equal(t, http.StatusBadRequest, r.status, "%s", r.body)
				require.Equal(t, c.code, r.text(t, "error_code"), "%s", r.body)
				if c.field != "" {
					require.Contains(t, r.json(t)["details"].(map[string]any)["fields"], c.field)
				}
			}
		})
	}
}

// A slowLog is a log whose reads wait while it is held.
type slowLog struct {
	held    atomic.Pointer[chan struct{}]
	waiting atomic.Int64
}

func (s *slowLog) fs() frame.FS {
	return frametest.Inject(frame.OS{}, func(op frametest.Op) error {
		if held := s.held.Load(); held != nil && op.Kind == frametest.Pread && strings.Contains(op.Name, "audit.wal") {
			s.waiting.Add(1)
			<-*held
		}
		return nil
	})
}

func (s *slowLog) hold() (release func()) {
	held := make(chan struct{})
	s.waiting.Store(0)
	s.held.Store(&held)
	return sync.OnceFunc(func() { s.held.Store(nil); close(held) })
}

func startSlowNotes(t *testing.T, settings ...string) (*testGate, *slowLog) {
	var slow slowLog
	return startGateWith(t, newNotes(t), func(a *app) { a.logFS = slow.fs() }, append(settings, patience...)...), &slow
}

const replayEverything = `{"base":"active","target":"active","replay":{"last":"24h"}}`

// TestOneReplayOfAClientRunsAtOnce: others are refused while it does, and a client that
// goes away makes room.
func TestOneReplayOfAClientRunsAtOnce(t *testing.T) {
	t.Parallel()
	g, slow := startSlowNotes(t)
	g.decideSome(t)
	for _, leaves := range []bool{false, true} {
		release := slow.hold()
		t.Cleanup(release)
		ctx, leave := context.WithCancel(t.Context())
		statuses := make(chan int, 5)
		for range cap(statuses) {
			go func() { statuses <- g.replayStatus(ctx) }()
		}
		for range cap(statuses) - 1 {
			require.Equal(t, http.StatusTooManyRequests, <-statuses)
		}
		if leaves {
			leave()
			require.Zero(t, <-statuses, "it left without an answer")
			release()
		} else {
			release()
			require.Equal(t, http.StatusOK, <-statuses)
			leave()
		}
		require.Eventually(t, func() bool { return g.replayStatus(t.Context()) == http.StatusOK }, startPatience, pollEvery)
	}
}

// replayStatus asks for a replay and gives the status of the answer, 0 when
// there is none.
func (g *testGate) replayStatus(ctx context.Context) int {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, g.base+"/policy/diff", strings.NewReader(replayEverything))
	if err != nil {
		return 0
	}
	request.Header.Set("Content-Type", "application/json")
	r, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0
	}
	defer r.Body.Close()
	if r.StatusCode == http.StatusTooManyRequests && r.Header.Get("Retry-After") == "" {
		return 0
	}
	return r.StatusCode
}

// TestAReplayOutOfTimeIsNotComplete: what was seen is told, without a hash, and
// an activation that rests on such a replay changes nothing.
func TestAReplayOutOfTimeIsNotComplete(t *testing.T) {
	t.Parallel()
	g, slow := startSlowNotes(t, "GATE_POLICY_REPLAY_TIMEOUT_MS=1")
	g.decideSome(t)
	hash := g.propose(t, askedNotes("2.0.0"))
	before := g.head(t)
	lagging := func(send func() reply) reply {
		release := slow.hold()
		answer := make(chan reply, 1)
		go func() { answer <- send() }()
		require.Eventually(t, func() bool { return slow.waiting.Load() > 0 || len(answer) > 0 }, startPatience, pollEvery, "its time may be over before it has read anything")
		<-time.After(250 * time.Millisecond) // longer than a replay may take, even where a timer comes late
		release()
		return <-answer
	}
	r := lagging(func() reply { return g.do(t, http.MethodPost, "/policy/diff", []byte(replayEverything)) })
	require.Equal(t, http.StatusOK, r.status, "%s", r.body)
	var answer struct {
		Replay replayReport `json:"replay"`
	}
	unmarshal(t, r.body, &answer)
	require.False(t, answer.Replay.Complete)
	require.Nil(t, answer.Replay.ImpactHash)
	body, err := json.Marshal(map[string]any{"expected_hash": hash, "impact": map[string]any{"from_seq": 1, "to_seq": before, "impact_hash": strings.Repeat("0", 64)}})
	require.NoError(t, err)
	r = lagging(func() reply { return g.do(t, http.MethodPost, "/policy/activate", body, operatorHeader) })
	require.GreaterOrEqual(t, r.status, 500, "%s", r.body)
	require.Equal(t, before, g.head(t))
	require.Equal(t, "candidate", g.get(t, "/policy/versions/notes@2.0.0").text(t, "status"))
}

// TestFactsOfAnotherVersionAreNotReplayed puts a decision into the log that a
// gate of another time made.
func TestFactsOfAnotherVersionAreNotReplayed(t *testing.T) {
	t.Parallel()
	d := newNotes(t)
	log := d.openLog(t)
	moment := time.Now().UTC()
	_, err := log.Append(t.Context(), eventlog.Group{Drafts: []event.Draft{
		event.New(moment, event.Context{Mode: "enforce"}, &event.Startup{Version: "9.0.0", Engine: map[string]string{"facts": "facts/v9"}}),
	}})
	require.NoError(t, err)
	engine := log.Head().Seq
	shared := event.Context{Actor: "ana", App: "shop", Tenant: "acme", Env: "prod", RequestID: "req_of_another_time"}
	decision := shared
	decision.Decision, decision.Mode, decision.Operation, decision.ReasonCode, decision.PolicyVersion = "ALLOW", "enforce", "SELECT", "safe_read", "notes@0.1.0"
	_, err = log.Append(t.Context(), eventlog.Group{Drafts: []event.Draft{
		event.New(moment, shared, &event.RequestReceived{}),
		event.New(moment, decision, &event.DecisionRecorded{RuleID: "default", Layer: "default", Enforced: true, Engine: engine}),
	}})
	require.NoError(t, err)
	require.NoError(t, log.Close(t.Context()))
	g := startGate(t, d, patience...)
	require.Equal(t, "ok", g.health(t).Status)
	g.decideSome(t)
	report := g.replayOf(t, "/policy/diff", map[string]any{"base": "active", "target_document": askedNotes("2.0.0"), "replay": map[string]any{"last": "24h"}})
	require.Equal(t, 1, report.Unreplayable)
	require.Equal(t, 9, report.Evaluated)
	require.Equal(t, 3, report.Changed)
	require.NotNil(t, report.ImpactHash)
}

// TestTheLogIsReplayedWithoutAGate: the command line finds what the gate finds,
// to the impact hash, beside a running gate.
func TestTheLogIsReplayedWithoutAGate(t *testing.T) {
	t.Parallel()
	g := startShop(t)
	g.busy(t)
	head := g.head(t)
	file := filepath.Join(t.TempDir(), "shop-gate@1.1.0.yaml")
	changed := strings.Replace(string(policy.Sample()), "version: 1.0.0", "version: 1.1.0", 1)
	changed = strings.Replace(changed, "decision: ALLOW", "decision: REQUIRE_APPROVAL", 1)
	require.NoError(t, os.WriteFile(file, []byte(changed), 0o600))
	document, err := json.Marshal(changed)
	require.NoError(t, err)
	r := g.post(t, "/policy/diff", fmt.Sprintf(`{"base":"active","target_document":%s,"replay":{"from_seq":1,"to_seq":%d}}`, document, head))
	require.Equal(t, http.StatusOK, r.status, "%s", r.body)

	code, out, errs := g.command(t, "policy", "diff", "active", file, "--log", "--to-seq", strconv.FormatUint(head, 10), "--json")
	require.Zero(t, code, errs)
	var offline map[string]any
	unmarshal(t, []byte(out), &offline)
	require.Equal(t, r.json(t)["replay"], offline["replay"])
	require.Equal(t, 11.0, offline["replay"].(map[string]any)["evaluated"])

	code, _, errs = g.command(t, "policy", "diff", "active", file, "--log", "--to-seq", "1000000")
	require.NotZero(t, code)
	require.Contains(t, errs, "not a range of the log")
	code, _, _ = g.command(t, "policy", "diff", "active", file, "--log", "--replay", "24h")
	require.NotZero(t, code)
}
