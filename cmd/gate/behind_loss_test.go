package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"writegate/agentctl"
	"writegate/eventlog"
	"writegate/eventlog/backup"
	"writegate/eventlog/event"
	"writegate/fixtures/issuer"
)

// A loss is a gate's folder where something is known in a backup, or before a place in
// the log, and what ended it came after that.
type loss struct {
	gateDir
	key, copied string
	settings    []string
	last        uint64 // in the backup

	held                statement
	approved, waiting   string    // approvals; the first was used after last
	agents, tokens      [3]string // the first token was revoked after last, the second agent deactivated, the third one bound by a policy
	newToken, newPolicy string
	jwt                 string // of a subject that was bound to the third agent, and unbound after last
	lost                string // a JWT whose binding and its end were lost
}

// beforeLoss makes such a folder; no gate runs in it.
func beforeLoss(t *testing.T) *loss {
	t.Helper()
	l := &loss{key: agentctl.NewSecret(agentctl.KeyPrefix), copied: filepath.Join(t.TempDir(), "backup"), held: insertHeld("once")}
	i := issuer.New(t)
	l.settings = append(append([]string{"GATE_PROJECT_KEYS=shop/ops=" + l.key}, trusting(t, i)...), patience...)
	l.jwt, l.lost = i.Token("client-7"), i.Token("client-8")
	l.gateDir = newNotes(t)
	w := l.start(t)
	for i := range l.agents {
		l.agents[i], l.tokens[i] = w.register(t, fmt.Sprint("bot ", i))
		require.Equal(t, http.StatusOK, w.as(t, l.tokens[i], insertOpen("before")).status)
	}
	subject := w.bind(t, l.agents[2], "client-7")
	require.Equal(t, http.StatusOK, w.as(t, l.jwt, insertOpen("before")).status)
	l.waiting, l.approved = w.hold(t, insertHeld("waits")), w.approved(t, l.held)
	used := w.approved(t, insertHeld("used"))
	require.Equal(t, http.StatusOK, w.query(t, insertHeld("used").with("approval_id", used)).status)
	code, out, errs := l.command(t, "log", "backup", l.copied, "--json")
	require.Zero(t, code, errs)
	var m backup.Manifest
	require.NoError(t, json.Unmarshal([]byte(out), &m))
	l.last = m.LastSeq

	require.Equal(t, http.StatusOK, w.query(t, l.held.with("approval_id", l.approved)).status)
	var list struct {
		Items []agentctl.TokenBody `json:"items"`
	}
	unmarshal(t, w.v1(t, http.MethodGet, "/agents/"+l.agents[0]+"/tokens", "").body, &list)
	require.Equal(t, http.StatusOK, w.v1(t, http.MethodDelete, "/agents/"+l.agents[0]+"/tokens/"+list.Items[0].TokenID, "").status)
	require.Equal(t, http.StatusOK, w.v1(t, http.MethodDelete, "/agents/"+l.agents[1], "").status)
	w.apply(t, w.rule(t, "block", ""), l.agents[2])
	w.unbind(t, subject)
	subject = w.bind(t, l.agents[2], "client-8") // of which the backup knows nothing
	require.Equal(t, http.StatusForbidden, w.as(t, l.lost, insertOpen("ended")).status)
	w.unbind(t, subject)
	for i, status := range []int{http.StatusUnauthorized, http.StatusUnauthorized, http.StatusForbidden} {
		require.Equal(t, status, w.as(t, l.tokens[i], insertOpen("ended")).status)
	}
	w.end(t)
	l.kept = newReceiptBook() // they are of a history that is lost
	return l
}

func (l *loss) start(t *testing.T) *agentWorld {
	t.Helper()
	return &agentWorld{startGate(t, l.gateDir, l.settings...), l.key}
}

// takenBack: nothing that the lost events may have ended is good at the first start
// behind the loss, and an operator gets it back.
func (l *loss) takenBack(t *testing.T, said string) {
	t.Helper()
	for _, want := range []string{"2 approvals that nobody had used", "3 agents (deactivated)", "3 tokens (revoked)", "gate agents activate"} {
		require.Contains(t, said, want)
	}
	w := l.start(t)
	require.Contains(t, w.output.String(), "2 approvals that nobody had used")
	require.Contains(t, string(w.get(t, "/audit?event_type=startup").body), "3 agents (deactivated)")
	refused := requireFault(t, w.query(t, l.held.with("approval_id", l.approved)), http.StatusGone, "approval_expired")
	require.Equal(t, "log_loss", refused["reason"])
	requireFault(t, w.resolve(t, l.waiting, "approve"), http.StatusGone, "approval_expired")
	require.Equal(t, "1", l.rowsOf(t, "held_notes", "once"))
	for i, token := range l.tokens {
		requireFault(t, w.as(t, token, insertOpen("ended")), http.StatusUnauthorized, "token_revoked")
		require.Equal(t, "inactive", w.v1(t, http.MethodGet, "/agents/"+l.agents[i], "").text(t, "status"))
	}
	requireFault(t, w.as(t, l.jwt, insertOpen("ended")), http.StatusUnauthorized, "token_revoked")
	require.Equal(t, "0", l.rowsOf(t, "open_notes", "ended"))
	ended := w.get(t, "/audit?event_type=agent_deactivated").json(t)["items"].([]any)
	require.Len(t, ended, len(l.agents))
	require.Equal(t, "log_loss", ended[0].(map[string]any)["payload"].(map[string]any)["cause"])

	code, out, errs := w.agents(t, "", "activate", l.agents[2])
	require.Zero(t, code, errs)
	l.newToken = regexp.MustCompile(`wga_\S+`).FindString(out)
	require.Equal(t, http.StatusOK, w.as(t, l.newToken, insertOpen("taken back")).status)
	requireFault(t, w.as(t, l.tokens[2], insertOpen("ended")), http.StatusUnauthorized, "token_revoked")
	requireFault(t, w.as(t, l.jwt, insertOpen("ended")), http.StatusUnauthorized, "token_revoked")
	w.bind(t, l.agents[2], "client-7")
	requireFault(t, w.as(t, l.jwt, insertOpen("ended")), http.StatusUnauthorized, "token_revoked")
	w.bind(t, l.agents[2], "client-8")
	requireFault(t, w.as(t, l.lost, insertOpen("ended")), http.StatusUnauthorized, "token_revoked")
	w.end(t)

	w = l.start(t) // what was taken back since stays so
	require.NotContains(t, w.output.String(), "behind a loss")
	require.Equal(t, http.StatusOK, w.as(t, l.newToken, insertOpen("taken back")).status)
	requireFault(t, w.as(t, l.tokens[0], insertOpen("ended")), http.StatusUnauthorized, "token_revoked")
	w.end(t)
}

// An approval that was used after the backup ran its statement a second time, and
// revoked tokens and deactivated agents came back.
func TestARestoreTakesBackWhatMayHaveEndedSince(t *testing.T) {
	t.Parallel()
	l := beforeLoss(t)
	l.destroy(t)
	code, out, errs := l.command(t, "log", "restore", l.copied)
	require.Zero(t, code, errs)
	require.Contains(t, out, fmt.Sprintf("up to event %d", l.last))
	l.takenBack(t, out)
	w := l.start(t)
	first := w.get(t, "/audit?order=asc&limit=1").json(t)["items"].([]any)[0].(map[string]any)
	p := first["payload"].(map[string]any)["predecessor"].(map[string]any)
	require.EqualValues(t, l.last, p["last_seq"])
	require.Contains(t, p["reason"], "restored from a backup")
	w.end(t)
	code, out, errs = l.command(t, "log", "verify", filepath.Join(l.restored(t), "audit.wal"))
	require.Zero(t, code, "%s%s", out, errs)
}

func TestALogBehindALossTakesBackWhatTheLostEventsMayHaveEnded(t *testing.T) {
	t.Parallel()
	l := beforeLoss(t)
	content := mustRead(t, l.file("audit.wal"))
	at, _ := placeOf(t, l.gateDir, l.last+1)
	content[at+120] ^= 1
	require.NoError(t, os.WriteFile(l.file("audit.wal"), content, 0o600))
	code, out, errs := l.command(t, "log", "new")
	require.Zero(t, code, errs)
	require.Contains(t, out, "all agents deactivated")
	for _, reason := range []string{"a bad disk", "no gate started since, so none took back anything"} {
		code, out, errs = l.command(t, "log", "new", "--accept-loss", reason)
		require.Zero(t, code, errs)
	}
	l.takenBack(t, out)
	code, out, errs = l.command(t, "log", "new", "--accept-loss", "another disk")
	require.Zero(t, code, errs)
	require.Contains(t, out, "0 approvals that nobody had used", "the first loss ended them")
	require.Contains(t, out, "1 agent (deactivated)", "the one that was taken back since")
}

// A gate that died while it took back goes on with the rest.
func TestAStartBehindALossThatWasCutShortDoesTheRest(t *testing.T) {
	t.Parallel()
	l := beforeLoss(t)
	l.destroy(t)
	code, out, errs := l.command(t, "log", "restore", l.copied, "--json")
	require.Zero(t, code, errs)
	var r restoredResult
	require.NoError(t, json.Unmarshal([]byte(out), &r))
	require.Equal(t, &takenBack{Approvals: 2, Agents: 3, Tokens: 3, Policy: r.TakenBack.Policy}, r.TakenBack)
	require.Contains(t, r.TakenBack.Policy, "@")
	require.Equal(t, l.last, r.LastSeq)

	log := l.openLog(t)
	_, err := log.Append(t.Context(), eventlog.Group{Drafts: []event.Draft{event.New(time.Now(), event.Context{Project: "shop", AgentID: l.agents[0]},
		&event.AgentDeactivated{AgentID: l.agents[0], Revision: 2, Cause: event.CauseLoss})}})
	require.NoError(t, err)
	require.NoError(t, log.Close(context.Background()))
	w := l.start(t)
	for _, token := range l.tokens {
		requireFault(t, w.as(t, token, insertOpen("ended")), http.StatusUnauthorized, "token_revoked")
	}
	require.Len(t, w.get(t, "/audit?event_type=agent_deactivated").json(t)["items"], len(l.agents))
	w.end(t)
}

// A log that is known to be whole goes on, and so does all that it knows.
func TestARestoreOfAWholeLogGoesOn(t *testing.T) {
	t.Parallel()
	l := beforeLoss(t)
	old := l.moveAway(t)
	before := contents(t, l.path)
	code, _, errs := l.command(t, "log", "restore", l.copied, "--old-log", old)
	require.Equal(t, exitFailed, code)
	require.Contains(t, errs, "it ends with event")
	code, _, errs = l.command(t, "log", "restore", l.copied, "--old-log", filepath.Join(l.copied, "log", "audit.wal"))
	require.Equal(t, exitFailed, code)
	require.Contains(t, errs, "it is the copy in a backup")
	require.Equal(t, before, contents(t, l.path), "nothing was restored")

	whole := filepath.Join(t.TempDir(), "backup")
	code, _, errs = gateDir{path: filepath.Dir(old)}.command(t, "log", "backup", whole)
	require.Zero(t, code, errs)
	inside := filepath.Join(t.TempDir(), "link")
	require.NoError(t, os.Symlink(filepath.Join(whole, "log"), inside))
	for _, copied := range []string{filepath.Join(whole, "log", "audit.wal"), filepath.Join(inside, "audit.wal")} {
		code, _, errs = l.command(t, "log", "restore", whole, "--old-log", copied)
		require.Equal(t, exitFailed, code)
		require.Contains(t, errs, "it is the copy in a backup", "though that is of a gate that was stopped")
	}
	elsewhere := filepath.Join(t.TempDir(), "copied")
	require.NoError(t, os.CopyFS(elsewhere, os.DirFS(filepath.Join(whole, "log"))))
	code, _, errs = l.command(t, "log", "restore", whole, "--old-log", filepath.Join(elsewhere, "audit.wal"))
	require.Equal(t, exitFailed, code, "wherever a copy of it lies")
	require.Contains(t, errs, "does not say that it was closed")
	retired := gateDir{path: filepath.Join(t.TempDir(), "retired")}
	require.NoError(t, os.CopyFS(retired.path, os.DirFS(filepath.Dir(old))))
	require.NoError(t, os.Chmod(retired.path, 0o700))
	code, _, errs = retired.command(t, "log", "new", "--accept-loss", "it was not needed")
	require.Zero(t, code, errs)
	require.NoError(t, os.Remove(filepath.Join(retired.restored(t), eventlog.RetiredAbout)))
	code, _, errs = l.command(t, "log", "restore", whole, "--old-log", filepath.Join(retired.restored(t), "audit.wal"))
	require.Equal(t, exitFailed, code, "though nothing beside it tells that another log follows it")
	require.Contains(t, errs, "does not say that it was closed")
	another := filepath.Join(filepath.Dir(old), eventlog.RetiredAbout)
	require.NoError(t, os.WriteFile(another, []byte("{}"), 0o600))
	code, _, errs = l.command(t, "log", "restore", whole, "--old-log", old)
	require.Equal(t, exitFailed, code)
	require.Contains(t, errs, "another log follows it")
	require.NoError(t, os.Remove(another))
	code, out, errs := l.command(t, "log", "restore", whole, "--old-log", old)
	require.Zero(t, code, errs)
	require.Contains(t, out, l.file("audit.wal")+" holds")
	require.NoError(t, os.CopyFS(l.file("policies"), os.DirFS(filepath.Join(l.copied, "policies"))))
	w := l.start(t)
	require.Equal(t, "pending", w.record(t, l.waiting)["status"])
	requireFault(t, w.query(t, l.held.with("approval_id", l.approved)), http.StatusConflict, "approval_already_used")
	require.Equal(t, "active", w.v1(t, http.MethodGet, "/agents/"+l.agents[0], "").text(t, "status"))
	require.Equal(t, http.StatusForbidden, w.as(t, l.tokens[2], insertOpen("ended")).status, "its policy binds it")
	w.end(t)
}

// restored is the folder of the one log before the one at hand.
func (d gateDir) restored(t testing.TB) string {
	t.Helper()
	found, err := filepath.Glob(d.file("audit.wal.retired/*"))
	require.NoError(t, err)
	require.Len(t, found, 1)
	return found[0]
}

// moveAway is destroy for who keeps the old log, and gives its path.
func (d gateDir) moveAway(t testing.TB) string {
	t.Helper()
	to := t.TempDir()
	found, err := filepath.Glob(d.file("audit.*"))
	require.NoError(t, err)
	for _, path := range found {
		require.NoError(t, os.Rename(path, filepath.Join(to, filepath.Base(path))))
	}
	d.destroy(t)
	return filepath.Join(to, "audit.wal")
}

// TestARestoreThatWasCutShortBehindTheCopyingIsCompleted, and no gate starts before.
func TestARestoreThatWasCutShortBehindTheCopyingIsCompleted(t *testing.T) {
	t.Parallel()
	l := beforeLoss(t)
	l.destroy(t)
	p := backup.Places{Log: l.file("audit.wal"), JSONL: l.file("audit.log"), Store: l.file("approvals.db"), Policies: l.file("policies")}
	m, err := backup.Restore(t.Context(), l.copied, p, behindOf(eventlog.Options{Path: p.Log}))
	require.NoError(t, err)
	require.Equal(t, l.last, m.LastSeq)
	code, _, errs := l.command(t, "serve")
	require.Equal(t, exitConfigured, code)
	require.Contains(t, errs, "run it again")
	code, _, errs = l.command(t, "log", "restore", l.copied)
	require.Equal(t, exitPartial, code)
	require.Contains(t, errs, "not empty")
	code, out, errs := l.command(t, "log", "new", "--accept-loss", "cut short")
	require.Zero(t, code, errs)
	l.takenBack(t, out)
}
