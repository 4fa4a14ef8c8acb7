package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// stateTables are what sessions are changed by, and what shows a session: hook runs
// what it is given as a trigger, late at the end of the transaction, change as a
// function, and each way has a view that does. Settings with a dot are left out: what
// names one, or loads a library, has made it known for as long as the session lasts.
// The source of transaction_read_only and its kin too: each BEGIN sets their values.
const stateTables = `CREATE TABLE kept (id int); CREATE TABLE hook (way text); CREATE TABLE late (way text); CREATE SEQUENCE drawn CACHE 10; SELECT lo_create(4711);
CREATE FUNCTION change(way text) RETURNS int LANGUAGE plpgsql AS $$ BEGIN EXECUTE way; RETURN 1; END $$;
CREATE FUNCTION changing() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN EXECUTE NEW.way; RETURN NEW; END $$;
CREATE FUNCTION changed() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM set_config('work_mem', '88kB', false); RETURN NEW; END $$;
CREATE TRIGGER hooked BEFORE INSERT ON hook FOR EACH ROW EXECUTE FUNCTION changing();
CREATE CONSTRAINT TRIGGER late AFTER INSERT ON late DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION changing();
CREATE FUNCTION tried(what text) RETURNS text LANGUAGE plpgsql AS $$ DECLARE shown text; BEGIN EXECUTE what INTO shown; RETURN shown; EXCEPTION WHEN OTHERS THEN RETURN SQLSTATE; END $$;
CREATE FUNCTION state() RETURNS text LANGUAGE sql AS $$ SELECT concat_ws(' ; ',
 (SELECT string_agg(concat(name, '=', setting, CASE WHEN name NOT LIKE 'transaction_%' THEN ' of ' || source END), ', ' ORDER BY name) FROM pg_settings WHERE name NOT LIKE '%.%'),
 'role', current_user, session_user, current_setting('role'), current_setting('session_authorization'), current_setting('is_superuser'),
 'names', (SELECT string_agg(concat_ws(' ', name, statement), ', ') FROM pg_prepared_statements WHERE from_sql OR name <> 'statement'),
 'cursors', (SELECT string_agg(name, ', ') FROM pg_cursors WHERE is_holdable),
 'locks', (SELECT string_agg(concat_ws(' ', classid, objid, mode), ', ') FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory'),
 'channels', (SELECT string_agg(c, ', ') FROM pg_listening_channels() AS c),
 'temporary', pg_my_temp_schema(), current_schemas(true), to_regclass('pg_temp.kept'), to_regtype('pg_temp.mood'), to_regprocedure('pg_temp.f()'),
 'drawn', tried('SELECT currval(''drawn'')'), tried('SELECT lastval()'), 'large', tried('SELECT lo_tell(0)'), 'kept', tried('SELECT count(*) FROM kept')) $$;
CREATE VIEW states AS SELECT state() AS state, random()::text AS drawn;
`

// stateWays change a session, or try to, each in a way of its own. Those of loud
// change what the server reports by itself: three of them in a minute stop a pool.
var (
	stateWays = []string{
		"SET work_mem = '77kB'", "SET LOCAL work_mem = '77kB'", "SELECT set_config('work_mem', '77kB', false)", "SELECT set_config('work_mem', '77kB', true)",
		"RESET ALL", "RESET work_mem", "SET ROLE pg_monitor", "SET LOCAL ROLE pg_monitor", "SELECT set_config('role', current_user, false)", "SET ROLE NONE",
		"SELECT set_config('session_authorization', session_user, false)", "SELECT set_config('seed', '0.25', false)", "SELECT setseed(0.5)", "SET seed = 0.5",
		"CREATE TEMPORARY TABLE kept (id int)", "CREATE TEMPORARY TABLE kept (id int) ON COMMIT DROP", "CREATE TEMPORARY TABLE kept (id int) ON COMMIT DELETE ROWS",
		"SELECT 1 AS id INTO TEMPORARY kept", "CREATE TEMPORARY VIEW kept AS SELECT 5 AS id", "CREATE TYPE pg_temp.mood AS ENUM ('a')", "CREATE FUNCTION pg_temp.f() RETURNS int LANGUAGE sql AS 'SELECT 1'",
		"CREATE TEMPORARY SEQUENCE kept_too", "SELECT pg_advisory_lock(7)", "SELECT pg_try_advisory_lock_shared(7, 8)", "SELECT pg_advisory_xact_lock(9)", "SELECT pg_advisory_unlock_all()",
		"LISTEN left_over", "NOTIFY left_over", "UNLISTEN *", "PREPARE left_over AS SELECT 1", `PREPARE "" AS SELECT 1`, `PREPARE statement AS INSERT INTO kept VALUES (666)`, `PREPARE "RESET ALL" AS INSERT INTO kept VALUES (666)`,
		"DEALLOCATE ALL", "DEALLOCATE left_over", "DEALLOCATE statement", "DECLARE left_over CURSOR WITH HOLD FOR SELECT 1", "DECLARE left_over CURSOR FOR SELECT 1", "CLOSE ALL",
		"SELECT nextval('drawn')", "SELECT setval('drawn', 100)", "SELECT lo_open(4711, 131072)", "SELECT pg_export_snapshot()", "LOAD 'plpgsql'", "LOAD 'auto_explain'",
		"SET session_replication_role = replica", "SET plan_cache_mode = force_generic_plan", "SET statement_timeout = 4321", "SET default_transaction_isolation = serializable",
		"SET default_transaction_read_only = on", "SET row_security = off", "SET bytea_output = escape", "SET lock_timeout = 4321", "SET track_counts = off", "SET synchronous_commit = off",
		"SET transaction_read_only = off", "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL SERIALIZABLE", "SET jit = off", "SET constraint_exclusion = on",
		"SET temp_buffers = 200", "SET debug_print_plan = off", "SET extra_float_digits = 3", "SET exit_on_error = off", "SET transform_null_equals = on", "SET backslash_quote = on",
		"PREPARE TRANSACTION 'left'", "DISCARD TEMP", "DISCARD PLANS", "DISCARD SEQUENCES", "SET CONSTRAINTS ALL DEFERRED", "INSERT INTO late VALUES ('SET work_mem = ''99kB''')",
		"CREATE TRIGGER changed BEFORE INSERT ON hook FOR EACH ROW EXECUTE FUNCTION changed()", "DROP TRIGGER IF EXISTS changed ON hook", "SELECT 1/0",
	}
	loudWays = []string{
		"SET TimeZone = 'Asia/Tokyo'", "SET DateStyle = 'SQL, DMY'", "SET client_encoding = LATIN1", "SET search_path = pg_temp, public", "SET IntervalStyle = sql_standard",
		"SET application_name = 'someone'", "SET SESSION AUTHORIZATION pg_monitor", "SELECT set_config('search_path', 'public', false)", "SET standard_conforming_strings = off",
	}
)

// A stateRun is a gate before which two tenants share one connection for reads and
// one for writes.
type stateRun struct {
	*testGate
	*rand.Rand
	t       *testing.T
	first   map[string]string // what a connection shows in each channel before anything changed it
	drawn   map[string]bool
	history []string
	loud    bool
	ran     map[string]int // outcomes
}

// newStateDir is a database with all that changes sessions.
func newStateDir(t *testing.T) gateDir {
	d := newGateDir(t, []byte(clientPolicy))
	d.execute(t, stateTables)
	for i, way := range stateWays {
		d.execute(t, fmt.Sprintf("CREATE VIEW way_%d AS SELECT change('%s') AS changed", i, strings.ReplaceAll(way, "'", "''")))
	}
	return d
}

// startStateRun begins anew, with connections that nobody used.
func startStateRun(t *testing.T, d gateDir, random *rand.Rand, drawn map[string]bool, ran map[string]int) *stateRun {
	return startStateRunAt(t, d, 1, random, drawn, ran)
}

// startStateRunAt is startStateRun with more connections.
func startStateRunAt(t *testing.T, d gateDir, connections int, random *rand.Rand, drawn map[string]bool, ran map[string]int) *stateRun {
	g := startGate(t, d, append(wireSettings, "GATE_MODE=shadow", fmt.Sprintf("GATE_DB_POOL_MAX=%d", connections), "GATE_AUDIT_FSYNC=off", "GATE_PGWIRE_MAX_CONNECTIONS_PER_IP=100")...)
	s := &stateRun{testGate: g, Rand: random, loud: connections == 1, t: t, first: map[string]string{}, drawn: drawn, ran: ran}
	for _, channel := range stateChannels {
		s.first[channel] = s.look(channel)
	}
	return s
}

// stateChannels are where a statement of the other tenant can come from.
var stateChannels = []string{"http read", "http write", "wire read", "wire write", "block read", "block write"}

// look is what the other tenant is shown.
func (s *stateRun) look(channel string) string {
	s.t.Helper()
	sql := "SELECT state, drawn FROM states"
	if strings.HasSuffix(channel, "write") {
		sql = "SELECT state() AS state, random()::text AS drawn"
	}
	var state, drawn string
	if strings.HasPrefix(channel, "http") {
		q := ask(sql)
		q["tenant"], q["actor"] = "other", "eve"
		r := s.query(s.t, q)
		if r.status == http.StatusServiceUnavailable {
			return ""
		}
		require.Equal(s.t, http.StatusOK, r.status, "%s %s\n%s", channel, r.body, strings.Join(s.history, "\n"))
		var answer struct {
			Rows []struct{ State, Drawn string }
		}
		require.NoError(s.t, json.Unmarshal(r.body, &answer))
		require.Len(s.t, answer.Rows, 1, "%s", r.body)
		state, drawn = answer.Rows[0].State, answer.Rows[0].Drawn
	} else {
		w := s.rawWire(s.t, "gate.tenant=other", "user=eve")
		messages := []pgproto3.FrontendMessage{simple(sql)}
		if strings.HasPrefix(channel, "block") {
			messages = []pgproto3.FrontendMessage{simple("BEGIN"), simple(sql), simple("COMMIT")}
		}
		for _, m := range messages {
			w.send(m)
			for _, answer := range w.ready() {
				switch m := answer.(type) {
				case *pgproto3.DataRow:
					state, drawn = string(m.Values[0]), string(m.Values[1])
				case *pgproto3.ErrorResponse:
					if m.Code == "57P03" || m.Code == "53300" {
						require.NoError(s.t, w.Close())
						return ""
					}
					require.Fail(s.t, "an error", "%s %s %s\n%s", channel, m.Code, m.Message, strings.Join(s.history, "\n"))
				}
			}
		}
		require.NoError(s.t, w.Close())
	}
	require.False(s.t, s.drawn[drawn], "random() gave %s before\n%s", drawn, strings.Join(s.history, "\n"))
	s.drawn[drawn] = true
	return state
}

// statement draws one that changes the session: by itself, or through code.
func (s *stateRun) statement() string {
	way := stateWays[s.IntN(len(stateWays))]
	if s.loud && s.IntN(100) == 0 {
		way = loudWays[s.IntN(len(loudWays))]
	}
	literal := "'" + strings.ReplaceAll(way, "'", "''") + "'"
	switch s.IntN(8) {
	case 0:
		return "INSERT INTO hook VALUES (" + literal + ")"
	case 1:
		return "INSERT INTO late VALUES (" + literal + ")"
	case 2:
		return "SELECT change(" + literal + ")"
	case 3:
		return "SELECT change(" + literal + ") / (SELECT count(*) FROM kept WHERE id < 0)"
	case 4:
		return "DO $do$ BEGIN EXECUTE " + literal + "; END $do$"
	case 5:
		return fmt.Sprintf("SELECT * FROM way_%d", s.IntN(len(stateWays)))
	case 6:
		return fmt.Sprintf("SELECT 1/(changed-1) FROM way_%d", s.IntN(len(stateWays)))
	}
	return way
}

// change sends what one tenant sends, and gives how many statements it was.
func (s *stateRun) change() int {
	n := 1 + s.IntN(3)
	s.history = s.history[:0]
	var w *rawWire
	send := func(sql string, messages ...pgproto3.FrontendMessage) {
		s.history = append(s.history, sql)
		w.send(messages...)
		code := "done"
		for _, m := range w.ready() {
			if e, ok := m.(*pgproto3.ErrorResponse); ok {
				code = e.Code
			}
		}
		s.ran[code]++
	}
	form := s.IntN(5)
	if form > 0 {
		w = s.rawWire(s.t)
	}
	if form > 2 {
		send("BEGIN", simple([]string{"BEGIN", "BEGIN", "BEGIN READ ONLY", "BEGIN ISOLATION LEVEL SERIALIZABLE"}[s.IntN(4)]))
	}
	for range n {
		sql := s.statement()
		switch form {
		case 0:
			s.history = append(s.history, "POST /query "+sql)
			s.ran[strconv.Itoa(s.query(s.t, ask(sql)).status)]++
		case 1, 3:
			if form == 3 && s.IntN(3) == 0 {
				send("SAVEPOINT s", simple("SAVEPOINT s"))
			}
			send(sql, simple(sql))
			if form == 3 && s.IntN(3) == 0 {
				send("ROLLBACK TO s", simple("ROLLBACK TO s"))
			}
		default:
			messages := []pgproto3.FrontendMessage{&pgproto3.Parse{Query: sql}}
			if s.IntN(2) == 0 {
				messages = append(messages, &pgproto3.Describe{ObjectType: 'S'})
			}
			send("extended "+sql, append(messages, &pgproto3.Bind{}, &pgproto3.Execute{MaxRows: uint32(s.IntN(2))}, syncMessage)...)
		}
	}
	if form > 2 && s.IntN(3) > 0 {
		end := []string{"COMMIT", "COMMIT", "ROLLBACK"}[s.IntN(3)]
		send(end, simple(end))
	}
	if w != nil {
		require.NoError(s.t, w.Close())
	}
	return n
}

// stateCount is how many statements change a session: few in every run, as many as
// WIRE_STATES says where it is set.
func stateCount(t *testing.T) int {
	text := os.Getenv("WIRE_STATES")
	if text == "" {
		return 250
	}
	n, err := strconv.Atoi(text)
	require.NoError(t, err)
	return n
}

// Whatever a statement of one tenant does to its session, in whichever way it is
// sent and however it ends, the next statement of another tenant finds the session
// as it is behind a login.
func TestNoStatementMeetsWhatAnEarlierOneLeft(t *testing.T) {
	t.Parallel()
	d := newStateDir(t)
	drawn, ran := map[string]bool{}, map[string]int{}
	random := rand.New(rand.NewPCG(16, 1))
	s := startStateRun(t, d, random, drawn, ran)
	for sent, count := 0, stateCount(t); sent < count; {
		sent += s.change()
		for range 1 + s.IntN(2) {
			channel := stateChannels[s.IntN(len(stateChannels))]
			state := s.look(channel)
			if state == "" { // a pool whose settings drift is stopped for half a minute
				s.end(t)
				s = startStateRun(t, d, random, drawn, ran)
				break
			}
			if state != s.first[channel] {
				require.Failf(t, "something is left", "%q in %s behind\n%s", differences(s.first[channel], state), channel, strings.Join(s.history, "\n"))
			}
		}
	}
	t.Logf("statements by what became of them: %v", ran)
	require.Positive(t, ran["200"])
	require.Positive(t, ran["done"])
	s.end(t)
}

// As TestNoStatementMeetsWhatAnEarlierOneLeft, for many at two connections at once.
// Some are gone before their statement ran, and some have the key of another one's:
// both give a transaction up that was begun for them, which the next one may have.
func TestNoStatementMeetsWhatAnyOfManyLeft(t *testing.T) {
	t.Parallel()
	d := newStateDir(t)
	ran := map[string]int{}
	s := startStateRunAt(t, d, 2, rand.New(rand.NewPCG(16, 2)), map[string]bool{}, ran)
	var work sync.WaitGroup
	var mu sync.Mutex
	const many = 8
	for i := range uint64(many) {
		one := *s
		one.Rand, one.drawn, one.ran = rand.New(rand.NewPCG(16, 3+i)), map[string]bool{}, map[string]int{}
		work.Go(func() {
			for sent, count := 0, stateCount(t)/many; sent < count; {
				switch one.IntN(3) {
				case 0:
					sent += one.change()
				case 1:
					sent++
					one.giveUp()
				}
				channel := stateChannels[one.IntN(len(stateChannels))]
				if state := one.look(channel); state != "" && !assert.Equal(t, one.first[channel], state, "%q in %s", differences(one.first[channel], state), channel) {
					break
				}
			}
			mu.Lock()
			defer mu.Unlock()
			for outcome, n := range one.ran {
				ran[outcome] += n
			}
		})
	}
	work.Wait()
	t.Logf("statements by what became of them: %v", ran)
	require.Positive(t, ran["200"])
	require.Positive(t, ran["done"])
	require.Positive(t, ran["gone"])
	require.Positive(t, ran["409"])
	s.end(t)
}

// giveUp sends a statement and leaves within milliseconds, or sends it twice at
// once under one key.
func (s *stateRun) giveUp() {
	q, key := ask(s.statement()), fmt.Sprintf("idempotency_key=key-%d", s.Uint64())
	body, err := json.Marshal(q)
	require.NoError(s.t, err)
	if s.IntN(2) == 0 {
		ctx, cancel := context.WithTimeout(s.t.Context(), time.Duration(s.IntN(8000))*time.Microsecond)
		defer cancel()
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, s.base+"/query?"+key, bytes.NewReader(body))
		require.NoError(s.t, err)
		request.Header.Set("Content-Type", "application/json")
		answer, err := http.DefaultClient.Do(request)
		if err != nil {
			s.ran["gone"]++
			return
		}
		s.ran[strconv.Itoa(answer.StatusCode)]++
		require.NoError(s.t, answer.Body.Close())
		return
	}
	statuses := make(chan int, 2)
	for range cap(statuses) {
		go func() {
			r, err := s.tryQuery(q, key)
			assert.NoError(s.t, err)
			statuses <- r.status
		}()
	}
	s.ran[strconv.Itoa(<-statuses)]++
	s.ran[strconv.Itoa(<-statuses)]++
}

// differences are the parts of a shown state that are not those of another.
func differences(want, got string) (list []string) {
	parts := func(s string) []string {
		return strings.FieldsFunc(s, func(r rune) bool { return r == ',' || r == ';' })
	}
	expected := parts(want)
	for i, part := range parts(got) {
		if i >= len(expected) || part != expected[i] {
			list = append(list, part)
		}
	}
	return list
}
