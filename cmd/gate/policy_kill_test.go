package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"writegate/eventlog/event"
	"writegate/sqlgate/policy"
)

func ledgerVersion(version string) string {
	return strings.Replace(ledgerPolicy, "version: 1.0.0", "version: "+version, 1)
}

// activeIn is the version that a log calls active: that of its last
// policy_activated or policy_rollback; "" when it has none.
func activeIn(events []event.Envelope) string {
	for i := len(events) - 1; i >= 0; i-- {
		if t := events[i].Type; t == event.TypePolicyActivated || t == event.TypePolicyRollback {
			return events[i].Context.PolicyVersion
		}
	}
	return ""
}

// governs: a gate that listens runs what the log calls active, and its folder
// says the same.
func (v *victim) governs(t testing.TB, active string) {
	t.Helper()
	r, err := v.try(http.MethodGet, "/policy/status", "")
	if err != nil || active == "" {
		return
	}
	require.Equal(t, active, r.field("policy_version"), "%s\n%s", r.body, &v.output)
	manifest, _ := r.field("manifest").(map[string]any)
	require.Equal(t, true, manifest["matches"], "%s", r.body)
}

// A policyStep is a step at which a gate dies while it carries out one change of
// the policy, and whether the change must be in the log afterwards.
type policyStep struct {
	name    string
	durable bool
}

var policySteps = []policyStep{
	{"commands.decide", false}, {"commands.append", false}, {"append.encoded", false}, {"append.before_write", false},
	{"append.after_write", true}, {"append.after_sync", true}, {"append.before_wake", true},
	{"commands.appended", true}, {"policy.appended", true}, {"policy.swapped", true}, {"policy.written", true},
}

// policyActions are what can be killed half-way: path, body, and what is active
// afterwards where it is in the log.
func policyActions(n int) []policyAction {
	document, invalid := ledgerVersion(fmt.Sprintf("1.1.%d", n)), strings.Replace(ledgerVersion(fmt.Sprintf("1.2.%d", n)), "match: {", "mtach: {", 1)
	version := fmt.Sprintf("ledger-gate@1.1.%d", n)
	return []policyAction{
		{name: "a candidate", path: "/policy/candidates", body: map[string]any{"document": document}, events: []event.Type{event.TypePolicyCandidateCreated}},
		{name: "a rejected candidate", path: "/policy/candidates", body: map[string]any{"document": invalid},
			events: []event.Type{event.TypePolicyCandidateCreated, event.TypePolicyCandidateRejected}},
		{name: "an activation", path: "/policy/activate", body: map[string]any{"expected_hash": policy.Digest([]byte(document))},
			events: []event.Type{event.TypePolicyValidated, event.TypePolicyActivated}, active: version},
		{name: "a rollback", path: "/policy/rollback", body: map[string]any{}, events: []event.Type{event.TypePolicyValidated, event.TypePolicyRollback}},
	}
}

type policyAction struct {
	name, path string
	body       map[string]any
	events     []event.Type // that it leaves
	active     string       // "" = as before, and for a rollback the one before that
}

// passes reports whether the action comes by the step at all.
func (a *policyAction) passes(step string) bool {
	candidate := strings.HasSuffix(a.path, "candidates")
	return !candidate || step != "policy.swapped" && step != "policy.written"
}

// TestAPolicyChangeKilledAtAnyStepIsDoneOrUndone kills gates at each step of a
// candidate, a rejected one, an activation and a rollback. Whatever the log has
// of the change then, it has all of it; the next gate runs the version that the
// log calls active, and its folder is what the log says. The ordinary tests take
// some steps of each action, CRASH_ROUNDS (`make crash`) all of them.
func TestAPolicyChangeKilledAtAnyStepIsDoneOrUndone(t *testing.T) {
	for i, action := range policyActions(0) {
		t.Run(action.name, func(t *testing.T) {
			t.Parallel()
			l := &policyLife{gateDir: newGateDir(t, []byte(ledgerPolicy))}
			for n, step := range policySteps {
				if action.passes(step.name) && (os.Getenv("CRASH_ROUNDS") != "" || n%4 == i%4 || strings.HasPrefix(step.name, "policy.")) {
					l.n++
					l.die(t, i, step)
				}
			}
			l.look(t)
		})
	}
}

// A policyLife is one folder in which one kind of change is killed again and again.
type policyLife struct {
	gateDir
	n int // the change that is next
}

// die lets one gate prepare the change and the next one die in it.
func (l *policyLife) die(t *testing.T, kind int, step policyStep) {
	actions := policyActions(l.n)
	v := l.spawn(t, fall{}, patient...)
	require.NotEmpty(t, v.base, "%s", &v.output)
	v.governs(t, activeIn(l.deadEvents(t)))
	for _, before := range actions[:kind] {
		if strings.HasPrefix(before.name, "a rejected") {
			continue
		}
		body, err := json.Marshal(before.body)
		require.NoError(t, err)
		r, err := v.try(http.MethodPost, before.path, string(body), operatorHeader)
		require.NoError(t, err)
		require.Contains(t, []int{http.StatusOK, http.StatusCreated}, r.status, "%s", r.body)
	}
	v.end(t)
	require.NoError(t, v.err, "%s", &v.output)

	before := l.deadEvents(t)
	victim := l.spawn(t, fall{at: death(step.name + "@1")}, patient...)
	require.NotEmpty(t, victim.base, "%s", &victim.output)
	started := len(l.deadEvents(t))
	body, err := json.Marshal(actions[kind].body)
	require.NoError(t, err)
	_, err = victim.try(http.MethodPost, actions[kind].path, string(body), operatorHeader)
	require.Error(t, err, "it was to die at %s of %s", step.name, actions[kind].name)
	victim.await(t)
	require.True(t, victim.killed(), "%v\n%s", victim.err, &victim.output)

	after := l.deadEvents(t)
	var left []event.Type
	for _, e := range after[started:] {
		left = append(left, e.Type)
	}
	if !step.durable {
		require.Empty(t, left, "%s at %s", actions[kind].name, step.name)
		require.Equal(t, activeIn(before), activeIn(after))
		return
	}
	require.Equal(t, actions[kind].events, left, "%s at %s", actions[kind].name, step.name)
	if want := actions[kind].active; want != "" {
		require.Equal(t, want, activeIn(after))
	}
}

// look holds a last gate against the log, and its folder byte by byte.
func (l *policyLife) look(t *testing.T) {
	v := l.spawn(t, fall{}, patient...)
	require.NotEmpty(t, v.base, "%s", &v.output)
	v.governs(t, activeIn(l.deadEvents(t)))
	r, err := v.try(http.MethodGet, "/policy/versions?limit=1000", "")
	require.NoError(t, err)
	var list struct {
		Items []struct {
			PolicyVersion string `json:"policy_version"`
			Hash          string `json:"hash"`
			Status        string `json:"status"`
		} `json:"items"`
	}
	unmarshal(t, r.body, &list)
	entries, err := os.ReadDir(l.file("policies"))
	require.NoError(t, err)
	require.Len(t, entries, len(list.Items)+1, "the versions and the manifest")
	active := 0
	for _, version := range list.Items {
		document, err := os.ReadFile(l.file("policies/" + version.PolicyVersion + ".yaml"))
		require.NoError(t, err)
		require.Equal(t, version.Hash, policy.Digest(document))
		if version.Status == event.PolicyActiveStatus {
			active++
		}
	}
	require.Equal(t, 1, active)
	v.end(t)
	require.NoError(t, v.err, "%s", &v.output)
	l.checkDisk(t)
}
