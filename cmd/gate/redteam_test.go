package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/stretchr/testify/require"

	"writegate/sqlgate/policy"
	"writegate/sqlgate/policyfolder"
)

// An attack is one line of the attack corpus (design/classification.md part 11).
type attack struct {
	ID           string `json:"id"`
	SQL          string `json:"sql"`
	Must         string `json:"must"` // not_allow_by_default, may_allow or column_policy
	NeedsCatalog bool   `json:"needs_catalog"`
}

func attackCorpus(t testing.TB) []attack {
	t.Helper()
	var all []attack
	for _, line := range linesOf(t, "fixtures/corpus/attacks.jsonl") {
		var a attack
		require.NoError(t, json.Unmarshal([]byte(line), &a))
		all = append(all, a)
	}
	require.Greater(t, len(all), 200)
	return all
}

// foundBypasses are the statements that were once taken, or made to be taken, for a
// safe read. They say nothing of tables that are there, so most fail at a server.
func foundBypasses(t testing.TB) []attack {
	t.Helper()
	var all []attack
	for n, line := range linesOf(t, "sqlgate/classify/testdata/never_safe.sql") {
		if line != "" && !strings.HasPrefix(line, "#") {
			all = append(all, attack{ID: fmt.Sprintf("N%03d", n+1), SQL: line, Must: "not_allow_by_default"})
		}
	}
	require.Greater(t, len(all), 250)
	return all
}

func linesOf(t testing.TB, name string) (all []string) {
	t.Helper()
	file, err := os.Open(filepath.Join("..", "..", filepath.FromSlash(name)))
	require.NoError(t, err)
	defer file.Close()
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		all = append(all, lines.Text())
	}
	require.NoError(t, lines.Err())
	return all
}

// mayNotRun holds for an attack that the text alone gives away.
func (a attack) mayNotRun() bool { return a.Must == "not_allow_by_default" && !a.NeedsCatalog }

// harmlessButNotAllowed lists every harmless statement of the corpus that is no
// safe read, with the reason.
var harmlessButNotAllowed = map[string]string{
	"C136": "txid_current assigns a transaction id, which a reader's transaction must not",
	"E230": "SET changes the session, which is shared; a time zone too changes what later texts mean",
}

// hiddenCode lists the statements whose text shows no harm: a view and an
// overload of a built-in function write behind it. The read fence holds them, but
// for what no transaction undoes (docs/THREATS.md).
var hiddenCode = map[string]string{
	"B075": "the view calls a function that writes",
	"D163": "public.upper(varchar) fits better than the built-in",
}

// protectedButNotAllowed lists the reads of protected data that no column
// policy has to decide about, because they are no safe reads already.
var protectedButNotAllowed = map[string]string{
	"H350": "pg_sleep",
	"H361": "pg_largeobject is a secret catalogue",
	"H363": "pg_stats shows values of columns",
}

// heldForApproval are the attacks that the starting policy puts before a
// person: column "start" of design/classification.md part 5. All others that
// are no safe reads it blocks, or the gate refuses them.
var heldForApproval = map[string]string{
	"B028": "an INSERT in a WITH is an INSERT",
	"B040": "SELECT INTO makes a table",
	"B041": "SELECT INTO makes a table",
	"B043": "a temporary table is a table",
	"B050": "MERGE by a condition that leaves rows out",
	"B053": "INSERT",
	"B058": "IS NOT NULL is a condition; that it holds for every row is in the data, and max_rows is the answer to it",
	"B063": "INSERT, whose RETURNING reads another table: the person sees it",
	"E235": "NOTIFY",
	"F253": "a view",
	"F255": "ALTER TABLE",
	"F256": "ALTER TABLE",
	"F258": "ALTER TABLE",
	"F260": "ALTER TABLE",
	"F261": "ALTER TABLE",
	"F263": "ALTER TABLE",
	"F265": "an index",
	"F266": "an index",
	"F286": "GRANT on a table; the facts do not tell to whom, so PUBLIC is for the person to see",
	"F288": "REVOKE on a table",
	"F293": "statistics",
	"F295": "VACUUM",
	"F296": "VACUUM",
	"F298": "REINDEX",
	"F300": "a materialized view, whose function the person sees",
	"F301": "a table",
}

// notAllowed tells whether the attack must not be allowed where no rule matches.
func (a attack) notAllowed(t testing.TB) bool {
	t.Helper()
	excepted := map[string]map[string]string{"not_allow_by_default": hiddenCode, "may_allow": harmlessButNotAllowed, "column_policy": protectedButNotAllowed}[a.Must]
	require.NotNil(t, excepted, "%s: unknown expectation %q", a.ID, a.Must)
	_, exception := excepted[a.ID]
	return (a.Must == "not_allow_by_default") != exception
}

// A channel is a way for a statement to come to the gate.
type channel struct {
	name  string
	over  func(r *redteam, a attack) said
	quiet bool // nothing of the statement reaches the server, whatever it is
}

// said is what a client heard.
type said struct {
	outcome string // allowed, blocked, held, or refused with its code
	heard   string // all of it
}

// channels are all ways that there are. A new one is a row here.
var channels = []channel{
	{name: "POST /query", over: overHTTP("/query", func(a attack) statement { return ask(a.SQL) })},
	{name: "POST /query?sql=", over: func(r *redteam, a attack) said {
		body := ask("")
		delete(body, "sql")
		return r.overHTTP("/query?sql="+url.QueryEscape(a.SQL), body)
	}},
	{name: "POST /query, preview", quiet: true, over: overHTTP("/query?mode=preview", func(a attack) statement { return ask(a.SQL) })},
	{name: "POST /policy/dry-run", quiet: true, over: overHTTP("/policy/dry-run", func(a attack) statement {
		return statement{"sql": a.SQL, "context": map[string]any{"app": "shop", "env": "prod"}}
	})},
	{name: "PREPARE and EXECUTE by POST /query", over: func(r *redteam, a attack) said {
		session := r.newName("s")
		return r.afterPrepare(r.overHTTP("/query", in(session, "PREPARE p AS "+a.SQL)), func() said { return r.overHTTP("/query", in(session, "EXECUTE p")) })
	}},
	{name: "simple query", over: overWire(func(r *redteam, a attack) [][]pgproto3.FrontendMessage { return packets(simple(a.SQL)) })},
	{name: "extended, described", over: overWire(func(r *redteam, a attack) [][]pgproto3.FrontendMessage {
		return [][]pgproto3.FrontendMessage{{&pgproto3.Parse{Query: a.SQL}, &pgproto3.Describe{ObjectType: 'S'}, &pgproto3.Bind{}, &pgproto3.Describe{ObjectType: 'P'}, &pgproto3.Execute{}, syncMessage}}
	})},
	{name: "extended, named, binary, in parts", over: overWire(func(r *redteam, a attack) [][]pgproto3.FrontendMessage {
		bind := &pgproto3.Bind{DestinationPortal: "c", PreparedStatement: "s", ResultFormatCodes: []int16{1}}
		return [][]pgproto3.FrontendMessage{{&pgproto3.Parse{Name: "s", Query: a.SQL}, syncMessage}, {bind, &pgproto3.Execute{Portal: "c", MaxRows: 1}, &pgproto3.Execute{Portal: "c"}, syncMessage}}
	})},
	{name: "Describe alone", over: overWire(func(r *redteam, a attack) [][]pgproto3.FrontendMessage {
		return [][]pgproto3.FrontendMessage{{&pgproto3.Parse{Query: a.SQL}, &pgproto3.Describe{ObjectType: 'S'}, syncMessage}}
	})},
	{name: "Describe in a block behind a write", over: overWire(func(r *redteam, a attack) [][]pgproto3.FrontendMessage {
		return [][]pgproto3.FrontendMessage{{simple("BEGIN")}, {simple(r.mark())}, {&pgproto3.Parse{Query: a.SQL}, &pgproto3.Describe{ObjectType: 'S'}, syncMessage}, {simple("COMMIT")}}
	})},
	{name: "PREPARE and EXECUTE by simple query", over: overWire(func(r *redteam, a attack) [][]pgproto3.FrontendMessage {
		return packets(simple("PREPARE p AS "+a.SQL), simple("EXECUTE p"))
	})},
	{name: "Parse, then EXECUTE by simple query", over: overWire(func(r *redteam, a attack) [][]pgproto3.FrontendMessage {
		return [][]pgproto3.FrontendMessage{{&pgproto3.Parse{Name: "p", Query: a.SQL}, syncMessage}, {simple("EXECUTE p")}}
	})},
	{name: "PREPARE, then Bind and Execute", over: overWire(func(r *redteam, a attack) [][]pgproto3.FrontendMessage {
		return [][]pgproto3.FrontendMessage{{simple("PREPARE p AS " + a.SQL)}, {&pgproto3.Bind{PreparedStatement: "p"}, &pgproto3.Execute{}, syncMessage}}
	})},
	{name: "in a block behind a write", over: overWire(func(r *redteam, a attack) [][]pgproto3.FrontendMessage {
		return packets(simple("BEGIN"), simple(r.mark()), simple(a.SQL), simple("COMMIT"))
	})},
	{name: "in a block, between savepoints", over: overWire(func(r *redteam, a attack) [][]pgproto3.FrontendMessage {
		return packets(simple("BEGIN"), simple("SAVEPOINT gate_fence"), simple(r.mark()), simple(a.SQL), simple("ROLLBACK TO gate_fence"), simple(r.mark()), simple("RELEASE gate_fence"), simple("COMMIT"))
	})},
	{name: "in a READ ONLY block", over: overWire(func(r *redteam, a attack) [][]pgproto3.FrontendMessage {
		return packets(simple("BEGIN READ ONLY"), simple(a.SQL), simple("COMMIT"))
	})},
	{name: "in a pipeline between writes", over: overWire(func(r *redteam, a attack) [][]pgproto3.FrontendMessage {
		var all []pgproto3.FrontendMessage
		for _, sql := range []string{r.mark(), a.SQL, r.mark()} {
			all = append(all, &pgproto3.Parse{Query: sql}, &pgproto3.Bind{}, &pgproto3.Execute{})
		}
		return [][]pgproto3.FrontendMessage{append(all, syncMessage)}
	})},
}

// packets are messages each of which waits for the answer to the one before it.
func packets(messages ...pgproto3.FrontendMessage) (all [][]pgproto3.FrontendMessage) {
	for _, m := range messages {
		all = append(all, []pgproto3.FrontendMessage{m})
	}
	return all
}

// mark is a write that the policies of the attacks allow, of a row of its own: the
// log has to say of it what the table says.
func (r *redteam) mark() string {
	r.marks++
	return markOf(r.marks)
}

func markOf(id int) string {
	return fmt.Sprintf("UPDATE orders SET status = 'marked' WHERE id = %d", id)
}

func (r *redteam) newName(of string) string {
	r.names++
	return of + strconv.Itoa(r.names)
}

func overHTTP(path string, body func(attack) statement) func(*redteam, attack) said {
	return func(r *redteam, a attack) said { return r.overHTTP(path, body(a)) }
}

func (r *redteam) overHTTP(path string, s statement) said {
	r.t.Helper()
	body, err := json.Marshal(s)
	require.NoError(r.t, err)
	id := r.newName("redteam-")
	reply := r.do(r.t, http.MethodPost, path, body, "X-Request-Id: "+id)
	code := decided(r.t, reply)
	if path == "/query" {
		r.answered[id] = code
	}
	return said{outcome: outcomeAs(code), heard: string(reply.body)}
}

// decided is what became of an attack: a decision, or the code of a refusal.
func decided(t testing.TB, r reply) string {
	t.Helper()
	if code := r.text(t, "error_code"); code != "" {
		return code
	}
	return r.text(t, "decision")
}

// The words for what becomes of a statement; anything else is the code of a refusal.
const (
	gotAllowed = "allowed"
	gotBlocked = "blocked"
	gotHeld    = "held"
)

func outcomeAs(code string) string {
	switch code {
	case "ALLOW":
		return gotAllowed
	case "BLOCK", "42501":
		return gotBlocked
	case "REQUIRE_APPROVAL", "GT001":
		return gotHeld
	}
	return "refused " + code
}

// afterPrepare goes on where PREPARE was taken.
func (r *redteam) afterPrepare(prepared said, execute func() said) said {
	if prepared.outcome != gotAllowed {
		return prepared
	}
	s := execute()
	s.heard = prepared.heard + s.heard
	return s
}

// overWire sends packets of messages on a connection of their own and hangs up. The
// outcome is that of the first error.
func overWire(messages func(*redteam, attack) [][]pgproto3.FrontendMessage) func(*redteam, attack) said {
	return func(r *redteam, a attack) said {
		w := r.rawWire(r.t)
		s := said{outcome: gotAllowed}
		for _, packet := range messages(r, a) {
			w.send(packet...)
			answer := w.ready()
			for _, m := range answer {
				s.hear(m)
			}
			if len(answer) == 0 || !isReady(answer[len(answer)-1]) {
				break // the gate hung up
			}
		}
		require.NoError(r.t, w.Close())
		return s
	}
}

func isReady(m pgproto3.BackendMessage) bool {
	_, ready := m.(*pgproto3.ReadyForQuery)
	return ready
}

func (s *said) hear(m pgproto3.BackendMessage) {
	switch m := m.(type) {
	case *pgproto3.ErrorResponse:
		if s.outcome == gotAllowed {
			s.outcome = outcomeAs(m.Code)
		}
		s.heard += strings.Join([]string{m.Message, m.Detail, m.Hint, m.Where, "\n"}, " ")
	case *pgproto3.NoticeResponse:
		s.heard += strings.Join([]string{m.Message, m.Detail, m.Hint, "\n"}, " ")
	case *pgproto3.DataRow:
		s.heard += string(bytes.Join(m.Values, []byte{' '})) + "\n"
	}
}

// A redCase is an attack through a channel.
type redCase struct {
	attack
	channel *channel
}

func (c redCase) String() string { return fmt.Sprintf("%s by %s: %s", c.ID, c.channel.name, c.SQL) }

// A redTally counts by channel what became of the attacks.
type redTally map[string]map[string]int

func (y redTally) note(channel, outcome string) {
	if strings.HasPrefix(outcome, "refused") {
		outcome = "refused"
	}
	if y[channel] == nil {
		y[channel] = map[string]int{}
	}
	y[channel][outcome]++
}

func (y redTally) String() string {
	var b strings.Builder
	for _, c := range channels {
		if of := y[c.name]; len(of) > 0 {
			fmt.Fprintf(&b, "\n  %-40s allowed %4d  blocked %4d  held %4d  refused %4d", c.name, of[gotAllowed], of[gotBlocked], of[gotHeld], of["refused"])
		}
	}
	return b.String()
}

// casesPerLook is how many cases share one look at the server.
const casesPerLook = 40

// attack sends all cases and tells what was seen beside their answers: for each an
// explanation that begins with the case.
func (r *redteam) attack(cases []redCase) (tally redTally, outcomes map[string]string, seen []string) {
	r.t.Helper()
	tally, outcomes = redTally{}, map[string]string{}
	for some := range slices.Chunk(cases, casesPerLook) {
		var wrong []string
		for _, c := range some {
			outcome, faults := r.send(c)
			tally.note(c.channel.name, outcome)
			outcomes[c.ID+" "+c.channel.name] = outcome
			wrong = append(wrong, faults...)
		}
		if effects := r.effects(); len(effects) > 0 {
			wrong = append(wrong, r.whoDidThat(some, effects)...)
		}
		seen = append(seen, wrong...)
	}
	return tally, outcomes, seen
}

// send sends one case and holds what its client heard, and what reached the server.
func (r *redteam) send(c redCase) (outcome string, faults []string) {
	r.t.Helper()
	r.witness.sent()
	s := c.channel.over(r, c.attack)
	if strings.Contains(s.heard, r.secret) || strings.Contains(s.heard, "SCRAM-SHA-256$") || strings.Contains(s.heard, "root:x:0:0") {
		faults = append(faults, c.String()+": it told a secret")
	}
	for _, sql := range r.witness.sent() {
		if sql == c.SQL && (c.channel.quiet || r.policy == denyPolicy && c.mayNotRun()) {
			faults = append(faults, c.String()+": it reached the server")
		}
	}
	if s.outcome == gotAllowed && r.policy == samplePolicy && c.mayNotRun() && !drawsFromASequence(c.SQL) && c.channel == &channels[0] {
		faults = append(faults, c.String()+": it was allowed")
	}
	return s.outcome, faults
}

// drawsFromASequence holds for what the sample policy lets the shop do.
func drawsFromASequence(sql string) bool { return strings.Contains(strings.ToLower(sql), "xtval") }

// whoDidThat sends the cases once more, each by itself, and names those that do it
// again; all of them where none does.
func (r *redteam) whoDidThat(some []redCase, effects []string) (named []string) {
	r.t.Helper()
	for _, c := range some {
		r.send(c)
		if again := r.effects(); len(again) > 0 {
			named = append(named, fmt.Sprintf("%s: %s", c, strings.Join(again, "; ")))
		}
	}
	if len(named) == 0 {
		return []string{fmt.Sprintf("one of %v: %s", some, strings.Join(effects, "; "))}
	}
	return named
}

// The policies under which the attacks are sent.
const (
	denyPolicy     = "default deny"
	samplePolicy   = "sample"
	startingPolicy = "starting"
)

// onlyMarks leaves everything to the default but the marks; a policy without any
// rule is not valid.
const onlyMarks = `
schema: gate.policy/v1
name: only-marks
version: 1.0.0
facts: facts/v1
rules:
  - id: marks
    decision: ALLOW
    reason_code: marks
    match: { class: [write], query_types_only: [UPDATE], tables_written_only: [public.orders], tables_read_only: [public.orders], where_only: [key_equality], functions_only: [], risk_signals_only: [] }
`

func writeRedPolicy(t testing.TB, name, dir string) {
	t.Helper()
	switch name {
	case denyPolicy:
		require.NoError(t, policyfolder.Create(dir, policyfolder.DefaultManifest, []byte(onlyMarks)))
	case samplePolicy:
		require.NoError(t, policyfolder.Create(dir, policyfolder.DefaultManifest, policy.Sample()))
	default:
		init := &app{streams: streams{strings.NewReader(""), io.Discard, os.Stderr}, environ: []string{"GATE_POLICY_DIR=" + dir}}
		require.Zero(t, init.run(t.Context(), []string{"policy", "init"}))
	}
}

// redteamEverything names the variable that has every attack sent through every
// channel, under every policy and role. `make redteam` sets it.
const redteamEverything = "REDTEAM_ALL"

// redteamRuns are the policies and roles, each with the share of the cases that
// the ordinary run sends: one in so many, through the first channel and through each
// other one, or none where it is 0. All go through the first where each attack has an outcome of its own.
var redteamRuns = []struct {
	policy, role   string
	firstIn, oneIn int
}{
	{denyPolicy, asSuperuser, 1, 8},
	{startingPolicy, asSuperuser, 1, 80},
	{samplePolicy, asLeastPrivilege, 2, 30},
	{denyPolicy, asLeastPrivilege, 0, 0},
	{samplePolicy, asSuperuser, 0, 0},
	{startingPolicy, asLeastPrivilege, 0, 0},
}
