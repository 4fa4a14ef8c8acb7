package commands

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"writegate/commands/fault"
	"writegate/eventlog"
	"writegate/eventlog/event"
)

func TestARunBeginsWithWhatWasFoundTornAndThenStartup(t *testing.T) {
	s := &Startup{Mode: "enforce", Event: event.Startup{Version: "0.6.0", Profile: "development", Fsync: "required"}}
	drafts := decideStart(s, moment)
	require.Equal(t, []event.Type{event.TypeStartup}, types(drafts))
	require.Equal(t, event.Context{Actor: "system", Operation: "start", Mode: "enforce"}, drafts[0].Context)

	s.Tails = []event.Tail{{Offset: 4096, Length: 12, File: "x.bin"}}
	drafts = decideStart(s, moment)
	require.Equal(t, []event.Type{event.TypeLogTailRecovered, event.TypeStartup}, types(drafts))
	require.Equal(t, &event.LogTailRecovered{Tails: s.Tails}, payload(t, &drafts[0]))

	s.Fence = &event.LogFenceTaken{Epoch: 3, PreviousEpoch: 2, Holder: "here"}
	drafts = decideStart(s, moment)
	require.Equal(t, []event.Type{event.TypeLogTailRecovered, event.TypeLogFenceTaken, event.TypeStartup}, types(drafts), "the startup comes last: its number is the run's")
	require.Equal(t, s.Fence, payload(t, &drafts[1]))
}

func TestAnExecutionTheGateDiedUnderBecomesUnknown(t *testing.T) {
	shared := event.Context{ExecutionID: testExecution, RequestID: testRequest, Actor: "ana"}
	for _, c := range []struct {
		name string
		open openExecution
		then []event.Type
	}{
		{"a write", openExecution{shared: shared, path: event.PathTx}, []event.Type{event.TypeExecutionStateUnknown}},
		{"one outside a transaction", openExecution{shared: shared, path: event.PathAlone}, []event.Type{event.TypeExecutionStateUnknown}},
		{"a read, which changed nothing", openExecution{shared: shared, path: event.PathRead}, []event.Type{event.TypeExecutionStateUnknown, event.TypeExecutionOutcomeResolved}},
		{"a keyed write", openExecution{shared: shared, path: event.PathTx, keyed: true}, []event.Type{event.TypeExecutionStateUnknown}},
	} {
		t.Run(c.name, func(t *testing.T) {
			drafts, err := decideStopped([]openExecution{c.open}, moment)
			require.NoError(t, err)
			require.Equal(t, c.then, types(drafts))
			p := payload(t, &drafts[0]).(*event.ExecutionStateUnknown)
			require.Equal(t, "gate_stopped", p.Cause)
			require.Equal(t, "db_query_timeout", drafts[0].Context.ErrorCode)
			require.Equal(t, c.open.keyed, p.Answer != nil)
			if len(drafts) > 1 {
				require.Equal(t, &event.ExecutionOutcomeResolved{Outcome: "aborted", Basis: "read_only"}, payload(t, &drafts[1]))
			}
		})
	}
}

func TestTheKeyOfAStoppedExecutionAnswersUnknown(t *testing.T) {
	answer, err := stoppedAnswer(testExecution)
	require.NoError(t, err)
	require.Equal(t, 504, answer.Status)
	var body map[string]string
	require.NoError(t, json.Unmarshal([]byte(answer.Body), &body))
	require.Equal(t, "db_query_timeout", body["error_code"])
	require.Equal(t, "unknown", body["execution_state"])
	require.Equal(t, testExecution, body["execution_id"])
	require.NotContains(t, body, "error_id", "each occurrence adds its own")
}

// folder is three versions, the middle one to become active.
func folder() ([]PolicyFile, PolicyVerdict) {
	files := []PolicyFile{
		{PolicyVersion: "core@1.0.0", Document: []byte("one"), Status: "archived"},
		{PolicyVersion: "core@1.1.0", Document: []byte("two"), Status: "active"},
		{PolicyVersion: "core@1.2.0", Document: []byte("three"), Status: "candidate"},
	}
	return files, PolicyVerdict{PolicyVersion: "core@1.1.0", Hash: sha256.Sum256([]byte("two")), Valid: true, Engine: map[string]string{"facts": "facts/v1"}}
}

func TestAnImportBringsEveryVersionAndTheActiveOneLast(t *testing.T) {
	files, verdict := folder()
	groups, err := decideImport(files, verdict, importFacts{}, moment)
	require.NoError(t, err)
	require.Len(t, groups, 1, "one append")
	drafts := groups[0]
	require.Equal(t, []event.Type{event.TypePolicyLoaded, event.TypePolicyLoaded, event.TypePolicyLoaded, event.TypePolicyValidated, event.TypePolicyActivated}, types(drafts))
	require.Equal(t, &event.PolicyLoaded{Origin: "import", PolicyVersion: "core@1.0.0", Hash: sha256.Sum256([]byte("one")), Status: "archived", Document: []byte("one")}, payload(t, &drafts[0]))
	require.Equal(t, &event.PolicyLoaded{Origin: "import", PolicyVersion: "core@1.1.0", Hash: verdict.Hash, Status: "candidate", Document: []byte("two")}, payload(t, &drafts[2]))
	require.Equal(t, &event.PolicyActivated{PolicyVersion: "core@1.1.0", Hash: verdict.Hash, By: "gate"}, payload(t, &drafts[4]))
}

func TestAnImportThatWasCutShortIsCarriedOn(t *testing.T) {
	files, verdict := folder()
	known := map[string][32]byte{"core@1.0.0": sha256.Sum256([]byte("one"))}
	groups, err := decideImport(files, verdict, importFacts{known: known}, moment)
	require.NoError(t, err)
	require.Equal(t, []event.Type{event.TypePolicyLoaded, event.TypePolicyLoaded, event.TypePolicyValidated, event.TypePolicyActivated}, types(groups[0]))

	known["core@1.1.0"] = verdict.Hash
	known["core@1.2.0"] = sha256.Sum256([]byte("three"))
	groups, err = decideImport(files, verdict, importFacts{known: known}, moment)
	require.NoError(t, err)
	require.Equal(t, []event.Type{event.TypePolicyValidated, event.TypePolicyActivated}, types(groups[0]))
}

func TestAnImportThatDoesNotFitIsRefused(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*importFacts, *PolicyVerdict)
		then   fault.Code
	}{
		{"a version is active", func(f *importFacts, _ *PolicyVerdict) { f.active = "core@0.9.0" }, fault.PolicyActivationFailed},
		{"not valid", func(_ *importFacts, v *PolicyVerdict) { v.Valid = false }, fault.PolicyActivationFailed},
		{"a verdict about other bytes", func(_ *importFacts, v *PolicyVerdict) { v.Hash[0]++ }, fault.PolicyActivationFailed},
		{"a verdict about no file", func(_ *importFacts, v *PolicyVerdict) { v.PolicyVersion = "core@9.9.9" }, fault.PolicyActivationFailed},
		{"the log knows other bytes", func(f *importFacts, _ *PolicyVerdict) { f.known = map[string][32]byte{"core@1.0.0": {1}} }, fault.PolicyVersionExists},
		{"the log knows other bytes of the active one", func(f *importFacts, _ *PolicyVerdict) { f.known = map[string][32]byte{"core@1.1.0": {1}} }, fault.PolicyVersionExists},
	} {
		t.Run(c.name, func(t *testing.T) {
			files, verdict := folder()
			var facts importFacts
			c.change(&facts, &verdict)
			groups, err := decideImport(files, verdict, facts, moment)
			require.Equal(t, c.then, fault.CodeOf(err))
			require.Empty(t, groups)
		})
	}
}

func TestALargeFolderIsCutIntoAppendsWithinTheLogsLimit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 1500).Draw(t, "files")
		size := rapid.SampledFrom([]int{10, 256 << 10}).Draw(t, "bytes")
		if size > 10 {
			n = min(n, 60)
		}
		document := bytes.Repeat([]byte("x"), size)
		files := make([]PolicyFile, n)
		for i := range files {
			files[i] = PolicyFile{PolicyVersion: fmt.Sprintf("p@1.0.%d", i), Document: document, Status: "archived"}
		}
		active := rapid.IntRange(0, n-1).Draw(t, "active")
		groups, err := decideImport(files, PolicyVerdict{PolicyVersion: files[active].PolicyVersion, Hash: sha256.Sum256(document), Valid: true}, importFacts{}, moment)
		require.NoError(t, err)
		total := 0
		for _, drafts := range groups {
			encoded := 0
			for i := range drafts {
				record, err := event.Encode(nil, &drafts[i])
				require.NoError(t, err)
				encoded += len(record) + 200
			}
			require.LessOrEqual(t, len(drafts), eventlog.MaxGroupEvents)
			require.LessOrEqual(t, encoded, eventlog.MaxGroupBytes)
			total += len(drafts)
		}
		require.Equal(t, n+2, total)
		last := groups[len(groups)-1]
		require.Equal(t, event.TypePolicyActivated, last[len(last)-1].Type)
	})
}

func TestAStartNamesTheActivePolicyAndItsVerdict(t *testing.T) {
	_, verdict := folder()
	drafts, err := decideLoaded(activePolicy{version: verdict.PolicyVersion, hash: verdict.Hash}, verdict, moment)
	require.NoError(t, err)
	require.Equal(t, []event.Type{event.TypePolicyLoaded, event.TypePolicyValidated}, types(drafts))
	require.Empty(t, payload(t, &drafts[0]).(*event.PolicyLoaded).Document, "the log has the bytes")

	for _, active := range []activePolicy{{}, {version: "core@1.2.0", hash: verdict.Hash}, {version: verdict.PolicyVersion}} {
		_, err := decideLoaded(active, verdict, moment)
		require.Equal(t, fault.PolicyActivationFailed, fault.CodeOf(err))
	}
}

func TestAFloodIsToldAtOnceAndThenOnceAMinuteWithItsCount(t *testing.T) {
	throttle, err := newThrottle()
	require.NoError(t, err)
	note := func(kind event.Type, client string, after time.Duration) (int, bool) {
		f, due := throttle.note(kind, flood{Flood: event.Flood{Client: client, Limit: 120}}, moment.Add(after))
		return f.Count, due
	}
	_, due := note(event.TypeRateLimitHit, "a", 0)
	require.True(t, due, "the first one at once")
	for range 5 {
		_, due = note(event.TypeRateLimitHit, "a", 59*time.Second)
		require.False(t, due)
	}
	_, due = note(event.TypeRateLimitHit, "b", time.Second)
	require.True(t, due, "another client")
	_, due = note(event.TypeOperatorAuthFailed, "a", time.Second)
	require.True(t, due, "another type")
	count, due := note(event.TypeRateLimitHit, "a", time.Minute)
	require.True(t, due)
	require.Equal(t, 6, count, "five that were held back and this one")
}

func TestCountedIncidentsAreToldWithoutANewOne(t *testing.T) {
	throttle, err := newThrottle()
	require.NoError(t, err)
	for range 4 {
		throttle.note(event.TypeOversizedRequest, flood{Flood: event.Flood{Client: "a", Path: "/query", Limit: 10, Got: 11}}, moment)
	}
	require.Empty(t, throttle.flush(moment.Add(time.Second), false), "not due yet")
	drafts := throttle.flush(moment.Add(time.Minute), false)
	require.Equal(t, []event.Type{event.TypeOversizedRequest}, types(drafts))
	require.Equal(t, &event.OversizedRequest{Flood: event.Flood{Client: "a", Path: "/query", Limit: 10, Got: 11, Count: 3}}, payload(t, &drafts[0]))
	require.Empty(t, throttle.flush(moment.Add(time.Hour), true), "told once")
}

func TestAFloodFromManyClientsIsBoundedAndCounted(t *testing.T) {
	throttle, err := newThrottle()
	require.NoError(t, err)
	const clients = 3 * floodClients
	written, counted := 0, 0
	for i := range clients {
		if f, due := throttle.note(event.TypeRateLimitHit, flood{Flood: event.Flood{Client: fmt.Sprint(i)}}, moment); due {
			written, counted = written+1, counted+f.Count
		}
	}
	require.Equal(t, floodBudget, written)
	require.LessOrEqual(t, throttle.clients.Len(), floodClients)
	drafts := throttle.flush(moment.Add(2*time.Minute), true)
	require.LessOrEqual(t, len(drafts), floodBudget+len(floodTypes))
	for i := range drafts {
		counted += payload(t, &drafts[i]).(*event.RateLimitHit).Count
	}
	require.Equal(t, clients, counted, "every occurrence is in some event")
}

func TestAClockThatWentBackSilencesNobody(t *testing.T) {
	throttle, err := newThrottle()
	require.NoError(t, err)
	throttle.note(event.TypeRateLimitHit, flood{Flood: event.Flood{Client: "a"}}, moment)
	_, due := throttle.note(event.TypeRateLimitHit, flood{Flood: event.Flood{Client: "a"}}, moment.Add(-time.Hour))
	require.True(t, due)
}
