package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/stretchr/testify/require"

	"writegate/fixtures/traffic"
	"writegate/sqlgate/policy"
)

// sentAgain are the recorded sources that are sent through the wire listener:
// each way in which drivers speak, and each mapper that needs lines of its own.
var sentAgain = []string{"bi", "django-4-held", "drizzle", "gorm", "knex", "pgx", "prisma", "psql", "sequelize-held", "sqlalchemy-1-asyncpg", "sqlalchemy-2-psycopg"}

// allTraffic asks for every source but those that are not meant for a gate: pgbench
// is held by TestEveryClient, and pg_dump changes the search path.
const allTraffic = "TRAFFIC_ALL"

var notForAGate = []string{"pg_dump", "pgbench"}

// reviewedTraffic has what is not done of each source, with the reason.
const reviewedTraffic = "testdata/pgwire/traffic.tsv"

// What applications send all day arrives at the database through the listener,
// with the policy of docs/POLICY.md, but for what is reviewed with its reason.
func TestRecordedTrafficPassesTheWireListener(t *testing.T) {
	t.Parallel()
	all, err := traffic.All()
	require.NoError(t, err)
	reviewed := reviewedRefusals(t)
	for _, s := range all {
		if slices.Contains(notForAGate, s.Name) || os.Getenv(allTraffic) == "" && !slices.Contains(sentAgain, s.Name) {
			continue
		}
		t.Run(s.Name, func(t *testing.T) {
			t.Parallel()
			done, refused := sendAgain(t, s)
			t.Logf("%s: %d of %d arrive\n%s", s.Name, done, len(s.Statements), refused.lines(s.Name))
			want, ok := reviewed[s.Name]
			if !ok {
				want = wireRefusals{}
			}
			require.Equal(t, want, refused, "of %s other statements are refused than %s has", s.Name, reviewedTraffic)
		})
	}
}

// wireRefusals count statements that did not run, by what the client was told.
type wireRefusals map[string]int

func (r wireRefusals) lines(source string) string {
	var b strings.Builder
	for told, n := range r {
		fmt.Fprintf(&b, "%s\t%s\t%d\t\n", source, told, n)
	}
	return b.String()
}

func reviewedRefusals(t *testing.T) map[string]wireRefusals {
	t.Helper()
	data, err := os.ReadFile(reviewedTraffic)
	require.NoError(t, err)
	all := map[string]wireRefusals{}
	for line := range strings.Lines(string(data)) {
		fields := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		require.Len(t, fields, 4, line)
		require.NotEmpty(t, fields[3], "no reason: %s", line)
		if all[fields[0]] == nil {
			all[fields[0]] = wireRefusals{}
		}
		all[fields[0]][fields[1]], err = strconv.Atoi(fields[2])
		require.NoError(t, err)
	}
	return all
}

// policyOfThePage is the document of that name in docs/POLICY.md.
func policyOfThePage(t *testing.T, name string) []byte {
	t.Helper()
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "POLICY.md"))
	require.NoError(t, err)
	head := "schema: gate.policy/v1\nname: " + name + "\n"
	_, document, found := strings.Cut(string(page), "```yaml\n"+head)
	require.True(t, found)
	document, _, _ = strings.Cut(document, "```")
	return []byte(head + document)
}

// sendAgain makes the tables of a source at a database, and sends all else through
// a gate, each statement by itself.
func sendAgain(t *testing.T, s traffic.Source) (done int, refused wireRefusals) {
	t.Helper()
	d := newGateDir(t, policyOfThePage(t, "mapped-shop"))
	if s.Name == "psql" || s.Name == "bi" {
		d = newGateDir(t, policy.Starting(""))
		schema, err := os.ReadFile(filepath.Join("..", "..", "fixtures", "traffic", "programs", "everything.sql"))
		require.NoError(t, err)
		d.execute(t, string(schema))
	}
	for _, one := range s.Statements {
		if one.Defines() && !strings.HasPrefix(one.Tags[0], "DROP") && !strings.HasPrefix(one.Tags[0], "TRUNCATE") {
			d.execute(t, one.SQL)
		}
	}
	g := startGate(t, d, append(asAtTheDatabase[:len(asAtTheDatabase):len(asAtTheDatabase)], "GATE_KEY_COLUMNS=session_key")...)
	var parameters []string
	for _, p := range s.Parameters {
		parameters = append(parameters, p.Name+"="+p.Value)
	}
	w := g.rawWire(t, parameters...)
	refused = wireRefusals{}
	for _, one := range s.Statements {
		if one.Defines() {
			done++
			continue
		}
		if told := w.sendRecorded(one); told != "" {
			refused[told]++
		} else {
			done++
		}
	}
	return done, refused
}

// sendRecorded sends one statement as it was sent, in a block where it needs one,
// and gives what it was refused with; "" where the server answered.
func (w *rawWire) sendRecorded(one traffic.Statement) string {
	w.t.Helper()
	if before := blockFor(one); before != nil {
		for _, text := range before {
			w.send(&pgproto3.Query{String: text})
			require.Empty(w.t, refusalIn(w.ready()), text)
		}
	}
	messages, err := one.Messages()
	require.NoError(w.t, err)
	w.send(messages...)
	told := refusalIn(w.ready())
	w.send(&pgproto3.Query{String: "ROLLBACK"})
	w.ready()
	if told == one.State || strings.HasPrefix(told, constraintViolated) {
		return ""
	}
	return told
}

// constraintViolated is the class of the database's own answer where rows are not
// those of the recording, of which repeated statements are missing.
const constraintViolated = "23"

// blockFor are the statements that a control statement needs before it, which were
// recorded once only.
func blockFor(one traffic.Statement) []string {
	words := strings.Fields(strings.ToUpper(strings.TrimRight(one.SQL, "; \n")))
	last := strings.Fields(strings.TrimRight(one.SQL, "; \n"))
	if len(words) == 0 {
		return nil
	}
	switch {
	case words[0] == "ROLLBACK" && len(words) > 1, words[0] == "RELEASE":
		return []string{"BEGIN", "SAVEPOINT " + last[len(last)-1]}
	case slices.Contains([]string{"COMMIT", "END", "ROLLBACK", "SAVEPOINT", "DECLARE"}, words[0]), strings.HasPrefix(strings.Join(words, " "), "SET TRANSACTION"):
		return []string{"BEGIN"}
	}
	return nil
}

// refusalIn is the SQLSTATE of an error among messages, with the rule where the
// gate names one.
func refusalIn(messages []pgproto3.BackendMessage) string {
	for _, m := range messages {
		if e, ok := m.(*pgproto3.ErrorResponse); ok {
			rule, _, _ := strings.Cut(e.Detail, ",")
			if e.Code == "42501" || e.Code == "GT001" {
				return e.Code + " " + rule
			}
			return e.Code
		}
	}
	return ""
}
