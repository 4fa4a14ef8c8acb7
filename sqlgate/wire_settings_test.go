package sqlgate

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"writegate/eventlog/event"
)

func (c *wireClient) show(name string) string {
	c.t.Helper()
	_, rows := c.query("SHOW " + name)
	return rows[0]
}

func TestAConnectionKeepsItsSettings(t *testing.T) {
	c := newWireWorld(t, nil).wire([2]string{"application_name", "tool"}, [2]string{"TimeZone", "europe/berlin"}, [2]string{"client_encoding", "'utf-8'"}, [2]string{"extra_float_digits", "3"})
	require.Contains(t, c.Parameters(), [2]string{"TimeZone", "Europe/Berlin"})
	require.Contains(t, c.Parameters(), [2]string{"application_name", "tool"})
	_, rows := c.query("SELECT extract(timezone from timestamptz '2026-01-01')::int")
	require.Equal(t, []string{"3600"}, rows)
	for _, row := range []struct{ sql, name, want string }{
		{"SET application_name TO 'né'", "application_name", "n??"},
		{"SET TIME ZONE 'America/New_York'", "timezone", "America/New_York"},
		{"SET statement_timeout = 1500", "statement_timeout", "1500ms"},
		{"SET statement_timeout TO '2s'", "statement_timeout", "2s"},
		{"RESET statement_timeout", "statement_timeout", "5s"},
		{"SET lock_timeout = '1 s'", "lock_timeout", "1s"},
		{"SET search_path TO public", "search_path", `"public", pg_temp`},
		{"SET datestyle = 'ISO'", "datestyle", "ISO, MDY"},
		{"SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY", "default_transaction_isolation", "repeatable read"},
		{"SET default_transaction_read_only = 'no'", "default_transaction_read_only", "off"},
		{"SET standard_conforming_strings = on", "standard_conforming_strings", "on"},
		{"RESET ALL", "application_name", "tool"},
		{"SET TIME ZONE DEFAULT", "timezone", "Europe/Berlin"},
		{"SET SESSION application_name = 'x'", "gate.actor", "ann"},
		{"DISCARD ALL", "application_name", "tool"},
		{"CLOSE ALL", "transaction_isolation", "read committed"},
		{"UNLISTEN *", "transaction_read_only", "off"},
	} {
		c.query(row.sql)
		require.Equal(t, row.want, c.show(row.name), row.sql)
	}
}

func TestWhatAConnectionMayNotSetIsRefused(t *testing.T) {
	w := newWireWorld(t, nil)
	c := w.wire()
	for sql, want := range map[string]string{
		"SET statement_timeout = 0": "22023", "SET statement_timeout = '6s'": "22023", "SET lock_timeout = 'soon'": "22023",
		"SET client_encoding = 'LATIN1'": "0A000", "SET DateStyle = 'German'": "0A000", "SET search_path = secret": "0A000",
		"SET TimeZone = 'Mars/Olympus'": "22023", "SET TIME ZONE 1.23456": "22023", "SET LOCAL TimeZone = '14.999'": "22023", "SET gate.actor = 'root'": "55P02", "SET gate.approval_id = 'x'": "22023",
		"SET standard_conforming_strings = off": "0A000", "SET extra_float_digits = 0": "0A000", "SET default_transaction_read_only = maybe": "22023",
		"SET session_replication_role = replica": "unsupported_sql_shape", "SET application_name = 'a', 'b'": "22023",
	} {
		require.Equal(t, want, state(c.refused(sql)), sql)
	}
	_, err := w.OpenWire(WireLogin{Settings: [][2]string{{"work_mem", "1GB"}}})
	require.Equal(t, "0A000", state(err))
}

func TestSettingsOfATransactionEndWithIt(t *testing.T) {
	c := newWireWorld(t, nil).wire()
	c.query("BEGIN")
	c.query("SET LOCAL application_name = 'inner'")
	c.query("SAVEPOINT s")
	c.query("SET application_name = 'later'")
	require.Equal(t, "later", c.show("application_name"))
	c.query("ROLLBACK TO s")
	require.Equal(t, "inner", c.show("application_name"))
	c.query("COMMIT")
	require.Equal(t, "", c.show("application_name"))

	c.query("BEGIN")
	c.query("SET application_name = 'undone'")
	require.Equal(t, [][2]string{{"application_name", "undone"}}, c.Changed())
	require.Empty(t, c.Changed(), "once")
	c.query("ROLLBACK")
	require.Equal(t, [][2]string{{"application_name", ""}}, c.Changed(), "the client hears that it is as before")
	require.Equal(t, "", c.show("application_name"))
	c.query("BEGIN")
	c.query("SET application_name = 'kept'")
	c.query("COMMIT")
	require.Equal(t, "kept", c.show("application_name"))

	c.ran("SET application_name = 'in a batch'")
	_, _, err := c.execute(false, "SELECT 1/0")
	require.Error(t, err)
	c.sync()
	require.Equal(t, "kept", c.show("application_name"))
}

func TestSettingsGoWithEachStatementAndIntoItsEvidence(t *testing.T) {
	w := newWireWorld(t, nil)
	c := w.wire()
	c.query("SET TimeZone = 'Asia/Tokyo'")
	c.query("SET statement_timeout = 2700")
	c.query("SET lock_timeout = 900")
	c.query("INSERT INTO t VALUES (1, timestamptz '2026-01-01 00:00+00'::text)")
	c.query("BEGIN")
	c.query("INSERT INTO t VALUES (2, timestamptz '2026-01-01 00:00+00'::text)")
	c.query("SET LOCAL TimeZone = 'UTC'")
	_, rows := c.query("SELECT timestamptz '2026-01-01 00:00+00'::text || current_setting('statement_timeout')")
	require.Equal(t, []string{"2026-01-01 00:00:00+002700ms"}, rows)
	c.query("COMMIT")
	c.query("SELECT now()")
	require.Equal(t, "2026-01-01 09:00:00+09", w.value("SELECT DISTINCT v FROM t"))
	var sent []map[string]string
	for _, e := range w.events() {
		if e.Type == event.TypeExecutionDispatched {
			var p event.ExecutionDispatched
			require.NoError(t, e.Parse(&p))
			require.Equal(t, 2700, p.Limits.TimeoutMS)
			sent = append(sent, p.Settings)
		}
	}
	require.Equal(t, sent[0], sent[3], "a read by itself")
	delete(sent[0], "transaction_timeout") // the gate's own, from 17 on
	require.Equal(t, map[string]string{"TimeZone": "Asia/Tokyo", "statement_timeout": "2700", "lock_timeout": "900"}, sent[0])
	require.Equal(t, "Asia/Tokyo", sent[1]["TimeZone"])
	require.NotContains(t, sent[2], "TimeZone")
	require.Equal(t, "57014", state(c.refused("SELECT pg_sleep(60)")))
}

func TestAnIsolationLevelMustComeFirst(t *testing.T) {
	w := newWireWorld(t, nil)
	c := w.wire()
	c.query("BEGIN")
	c.query("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
	require.Equal(t, "repeatable read", c.show("transaction_isolation"))
	_, rows := c.query("SELECT current_setting('transaction_isolation')")
	require.Equal(t, []string{"repeatable read"}, rows)
	require.Equal(t, "25001", state(c.refused("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE")))
	c.query("ROLLBACK")
	c.query("SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL SERIALIZABLE")
	c.ran("INSERT INTO t VALUES (1, current_setting('transaction_isolation'))")
	c.sync()
	require.Equal(t, "serializable", w.value("SELECT v FROM t"))
	c.query("INSERT INTO t VALUES (2, current_setting('transaction_isolation'))")
	require.Equal(t, "serializable", w.value("SELECT DISTINCT v FROM t"))
}

func TestAnApprovalIsAskedForAndUsedOnce(t *testing.T) {
	w := newWireWorld(t, nil)
	c := w.wire()
	c.query("INSERT INTO t VALUES (1, 'a'), (2, 'b')")
	const held = "DELETE FROM t WHERE id = 1"
	ask := func(sql string) *Answer {
		t.Helper()
		var refusal *WireRefusal
		require.True(t, errors.As(c.refused(sql), &refusal))
		require.Equal(t, "REQUIRE_APPROVAL", state(refusal))
		return refusal.Answer
	}
	id := ask(held).ApprovalID
	c.query("SET gate.approval_id = '" + id + "'")
	require.Equal(t, id, c.show("gate.approval_id"))
	require.Equal(t, id, ask(held).ApprovalID, "while it is pending it is the same one")
	w.approve(id)
	c.query("SELECT 1") // the setting waits for a statement that needs it
	tag, _ := c.query(held)
	require.Equal(t, "DELETE 1", tag)
	require.Empty(t, c.show("gate.approval_id"))

	id = ask("DELETE FROM t WHERE id = 2").ApprovalID
	w.approve(id)
	comment := "/* gate.approval_id=" + id + " */ "
	require.Equal(t, "approval_mismatch", state(c.refused(comment+"DELETE FROM t WHERE id = 3")))
	for _, sql := range []string{" " + comment + "DELETE FROM t WHERE id = 2", "DELETE " + comment + "FROM t WHERE id = 2", "/* gate.approvalid=" + id + " */ DELETE FROM t WHERE id = 2"} {
		require.NotEqual(t, id, ask(sql).ApprovalID, "an ordinary comment: %s", sql)
	}
	tag, _ = c.query(comment + "DELETE FROM t WHERE id = 2")
	require.Equal(t, "DELETE 1", tag)
	require.Equal(t, "approval_already_used", state(c.refused(comment+"DELETE FROM t WHERE id = 2")))
	require.Equal(t, "0", w.value("SELECT count(*) FROM t"))
}

// gate.approval_id is a setting as any other: LOCAL and a rollback mean for it what they
// mean for the others. One that served is gone, whatever is rolled back.
func TestTheSettingOfAnApprovalEndsAsOthersDo(t *testing.T) {
	w := newWireWorld(t, nil)
	c := w.wire()
	c.query("INSERT INTO t VALUES (1, 'a'), (2, 'b')")
	approved := func(sql string) string {
		t.Helper()
		var refusal *WireRefusal
		require.ErrorAs(t, c.refused(sql), &refusal)
		w.approve(refusal.Answer.ApprovalID)
		return refusal.Answer.ApprovalID
	}
	id := approved("DELETE FROM t WHERE id = 1")
	set := "SET gate.approval_id = '" + id + "'"
	local := "SET LOCAL gate.approval_id = '" + id + "'"
	for _, sent := range [][]string{
		{"BEGIN", local, "ROLLBACK"}, {"BEGIN", local, "COMMIT"}, {"BEGIN", set, "ROLLBACK"}, {"BEGIN", "SAVEPOINT s", set, "ROLLBACK TO s", "COMMIT"}, {local},
		{set, "RESET gate.approval_id"}, {set, "SET gate.approval_id TO DEFAULT"}, {set, "RESET ALL"}, {set, "DISCARD ALL"},
	} {
		for _, sql := range sent {
			c.query(sql)
		}
		require.Empty(t, c.show("gate.approval_id"), "%v", sent)
	}
	done, err := c.Query(t.Context(), local, &rowsSink{})
	require.NoError(t, err)
	require.Equal(t, "25P01", done.Notices[0].SQLState)
	c.ran(set)
	_, _, err = c.execute(false, "SELECT 1/0")
	require.Error(t, err)
	c.sync()
	require.Empty(t, c.show("gate.approval_id"))

	other := approved("DELETE FROM t WHERE id = 2")
	c.query("SET gate.approval_id = '" + other + "'")
	c.query("BEGIN")
	c.query("SAVEPOINT s")
	c.query(local)
	c.query("DELETE FROM t WHERE id = 1")
	require.Empty(t, c.show("gate.approval_id"), "that of the session waits for its end")
	c.query("COMMIT")
	require.Equal(t, other, c.show("gate.approval_id"))
	c.query("BEGIN")
	c.query("SAVEPOINT s")
	c.query("DELETE FROM t WHERE id = 2")
	c.query("ROLLBACK TO s")
	require.Empty(t, c.show("gate.approval_id"), "it served")
	c.query("ROLLBACK")
	require.Empty(t, c.show("gate.approval_id"))
	require.Equal(t, "2", w.value("SELECT id FROM t"))
	started := w.wire([2]string{"gate.approval_id", id})
	require.Equal(t, id, started.show("gate.approval_id"))
	started.query("RESET gate.approval_id")
	require.Empty(t, started.show("gate.approval_id"))
}

func TestAnApprovalIsForItsParametersToo(t *testing.T) {
	w := newWireWorld(t, nil)
	c := w.wire()
	c.query("INSERT INTO t VALUES (1, 'a'), (2, 'b')")
	run := func(types []uint32, formats []int16, id string) error {
		require.NoError(t, c.Parse(t.Context(), "", "DELETE FROM t WHERE id = $1", types))
		require.NoError(t, c.Bind("", "", formats, [][]byte{[]byte(id)}, nil))
		_, err := c.Execute(t.Context(), "", 0, true, &rowsSink{})
		c.sync()
		return err
	}
	var refusal *WireRefusal
	require.ErrorAs(t, run(nil, nil, "1"), &refusal)
	id := refusal.Answer.ApprovalID
	w.approve(id)
	for _, other := range []func() error{
		func() error { return run(nil, nil, "2") },
		func() error { return run([]uint32{20}, nil, "1") },
		func() error { return run(nil, []int16{1}, "\x00\x00\x00\x01") },
	} {
		c.query("SET gate.approval_id = '" + id + "'")
		require.Equal(t, "approval_mismatch", state(other()))
	}
	c.query("SET gate.approval_id = '" + id + "'")
	require.NoError(t, run(nil, []int16{0}, "1"))
	require.Equal(t, "2", w.value("SELECT id FROM t"))
}

// A text with times in it is another statement in another time zone.
func TestAnApprovalIsForItsTimeZoneToo(t *testing.T) {
	w := newWireWorld(t, nil)
	c := w.wire()
	c.query("INSERT INTO t VALUES (1, 'a'), (2, 'b')")
	const held = "DELETE FROM t WHERE id = extract(hour FROM timestamptz '2026-01-01 02:00' AT TIME ZONE 'UTC')"
	ask := func() string {
		t.Helper()
		var refusal *WireRefusal
		require.ErrorAs(t, c.refused(held), &refusal)
		require.Equal(t, "REQUIRE_APPROVAL", state(refusal))
		w.approve(refusal.Answer.ApprovalID)
		return refusal.Answer.ApprovalID
	}
	shown := func(id string) []string {
		view := w.store.View()
		defer view.Close()
		a, _, err := view.Approval(id)
		require.NoError(t, err)
		return a.Parameters
	}
	utc := ask()
	require.Empty(t, shown(utc))
	c.query("SET TimeZone = 'Etc/GMT-1'")
	for _, begin := range []bool{false, true} {
		if begin {
			c.query("RESET TimeZone")
			c.query("BEGIN")
			c.query("SET LOCAL TimeZone = 'Etc/GMT-1'")
		}
		require.Equal(t, "approval_mismatch", state(c.refused("/* gate.approval_id="+utc+" */ "+held)))
	}
	c.query("ROLLBACK")
	c.query("SET TimeZone = 'Etc/GMT-1'")
	zoned := ask()
	require.Equal(t, []string{"TimeZone = 'Etc/GMT-1'"}, shown(zoned))
	c.query("RESET TimeZone")
	require.Equal(t, "approval_mismatch", state(c.refused("/* gate.approval_id="+zoned+" */ "+held)))
	c.query("SET TimeZone = 'Etc/GMT-1'")
	c.query("/* gate.approval_id=" + zoned + " */ " + held)
	require.Equal(t, "2", w.value("SELECT id FROM t"))
	c.query("RESET TimeZone")
	c.query("/* gate.approval_id=" + utc + " */ " + held)
	require.Equal(t, "0", w.value("SELECT count(*) FROM t"))
}

// Under policies of rows a text means other rows where something before it in its
// transaction has set whose they are.
func TestAnApprovalIsForWhatItsTransactionHasSetToo(t *testing.T) {
	w := newWireWorld(t, nil)
	c := w.wire()
	c.query("PREPARE tenant_of_the_request AS SELECT /* a text that is longer than its EXECUTE */ set_config('app.tenant', $1, true)")
	const held = "DELETE FROM t WHERE id > 0"
	in := func(id string, before ...string) (err error) {
		t.Helper()
		c.query("BEGIN")
		for _, text := range before {
			c.query(text)
		}
		if id != "" {
			c.query("SET LOCAL gate.approval_id = '" + id + "'")
		}
		if err = c.fails(held); err == nil {
			c.query("COMMIT")
			return nil
		}
		c.query("ROLLBACK")
		return err
	}
	const asC = "SELECT set_config('app.tenant', 'c', true)"
	for before, shown := range map[string]string{
		"SELECT set_config('app.tenant', 'a', true)": "SELECT set_config('app.tenant', 'a', true)",
		"EXECUTE tenant_of_the_request ('b')":        "EXECUTE tenant_of_the_request ('b') which runs SELECT /* a text that is longer than its EXECUTE */ set_config('app.tenant', $1, true)",
	} {
		var refusal *WireRefusal
		require.ErrorAs(t, in("", before), &refusal)
		id := refusal.Answer.ApprovalID
		w.approve(id)
		view := w.store.View()
		a, _, err := view.Approval(id)
		require.NoError(t, errors.Join(err, view.Close()))
		require.Equal(t, []string{"before it in its transaction: " + shown}, a.Parameters)
		for _, other := range [][]string{nil, {asC}, {before, asC}, {"EXECUTE tenant_of_the_request ('c')"}, {"SAVEPOINT s", before, "ROLLBACK TO s"}, {asC, "SAVEPOINT s", before, "ROLLBACK TO s"}} {
			require.Equal(t, "approval_mismatch", state(in(id, other...)), "%v", other)
		}
		require.NoError(t, in(id, "SAVEPOINT s", asC, "ROLLBACK TO s", before), "what was undone sets nothing")
	}
}

// Which rows a text comes to by random() depends on the seed, and on each draw since; no
// rollback takes either back.
func TestNobodyIsAskedBehindASeed(t *testing.T) {
	w := newWireWorld(t, nil)
	c := w.wire()
	const held = "DELETE FROM t WHERE random() < 0.05"
	id := heldBy(t, c.refused(held))
	w.approve(id)
	for _, before := range [][]string{{"SELECT setseed(0.5)"}, {"SELECT pg_catalog.setseed(0.5)"}, {"SAVEPOINT s", "SELECT setseed(0.5)", "ROLLBACK TO s"}, {"SELECT setseed(0.5)", "SELECT random()"}} {
		for _, approval := range []string{"", id} {
			c.query("BEGIN")
			for _, sql := range before {
				c.query(sql)
			}
			c.query("SET LOCAL gate.approval_id = '" + approval + "'")
			refusal := c.refused(held)
			require.Equal(t, "0A000", state(refusal), "%v", before)
			require.ErrorContains(t, refusal, "seed")
			c.query("ROLLBACK")
		}
	}
}

// What a text with a time in it has set depends on the time zone that it ran under: a
// person is told it where it is not the one that is shown for what they approve.
func TestAnApprovalShowsTheTimeZoneOfWhatWasSetBeforeIt(t *testing.T) {
	w := newWireWorld(t, nil)
	c := w.wire()
	const set, held, before = "SELECT set_config('app.tenant', 'a', true) WHERE now() > '2026-06-01 06:00'", "DELETE FROM t WHERE id > 0", "before it in its transaction"
	for _, zones := range []struct {
		setter, held string
		shown        []string
	}{
		{"UTC", "UTC", []string{before + ": " + set}},
		{"Asia/Tokyo", "Asia/Tokyo", []string{"TimeZone = 'Asia/Tokyo'", before + ": " + set}},
		{"Asia/Tokyo", "UTC", []string{before + ", under TimeZone = 'Asia/Tokyo': " + set}},
		{"UTC", "Asia/Tokyo", []string{"TimeZone = 'Asia/Tokyo'", before + ", under TimeZone = 'UTC': " + set}},
	} {
		c.query("BEGIN")
		c.query("SET LOCAL TimeZone = '" + zones.setter + "'")
		c.query(set)
		c.query("SET LOCAL TimeZone = '" + zones.held + "'")
		require.Equal(t, zones.shown, w.asked(c.refused(held)))
		c.query("ROLLBACK")
	}
}

// Of what was set before a statement every parameter is shown, whichever of them decides.
func TestAnApprovalShowsEachParameterOfWhatWasSetBeforeIt(t *testing.T) {
	w := newWireWorld(t, nil)
	c := w.wire()
	long := strings.Repeat("x", 1020)
	const set = "SELECT set_config('app.tenant', $5, true), $1, $2, $3, $4"
	c.query("BEGIN")
	c.ran(set, long, long, long, long, "t3")
	c.sync()
	cut := "'" + long[:200] + "'… (1020 bytes), "
	require.Equal(t, []string{"before it in its transaction, with the parameters " + strings.Repeat(cut, 4) + "'t3': " + set}, w.asked(c.refused("DELETE FROM t")))
	c.query("ROLLBACK")

	types := append(slices.Repeat([]uint32{25}, 499), 18)
	require.NoError(t, c.Parse(t.Context(), "many", "SELECT set_config('app.tenant', $500::text, true)", types))
	c.sync()
	c.query("BEGIN")
	c.query("EXECUTE many(" + strings.Repeat("'a', ", 499) + "'abc')")
	require.Contains(t, w.asked(c.refused("DELETE FROM t"))[0], `, text, "char": EXECUTE many(`)
	c.query("ROLLBACK")
}

// However much was set in a transaction, an approval shows the last of it.
func TestAnApprovalShowsTheLastOfWhatWasSetBeforeIt(t *testing.T) {
	w := newWireWorld(t, nil)
	c := w.wire()
	c.query("BEGIN")
	for i := range 70 {
		c.query(fmt.Sprintf("SELECT set_config('app.tenant', '%02d', true), '%s'", i, strings.Repeat("x", 2000)))
	}
	shown := w.asked(c.refused("DELETE FROM t"))
	require.Equal(t, "7 more before these in its transaction", shown[0])
	require.Len(t, shown, 64)
	require.Contains(t, shown[1], "'07'")
	require.Contains(t, shown[len(shown)-1], "'69'")
	c.query("ROLLBACK")
}

func TestAnApprovalOfAnotherStatementPreparedAnewDoesNotFit(t *testing.T) {
	w := newWireWorld(t, nil)
	c := w.wire()
	c.query("INSERT INTO t VALUES (1, 'a'), (2, 'b')")
	require.NoError(t, c.Parse(t.Context(), "d", "DELETE FROM t WHERE id = $1", []uint32{23}))
	c.sync()
	var refusal *WireRefusal
	require.ErrorAs(t, c.refused("EXECUTE d (1)"), &refusal)
	view := w.store.View()
	a, _, err := view.Approval(refusal.Answer.ApprovalID)
	require.NoError(t, errors.Join(err, view.Close()))
	require.Equal(t, []string{"types of the parameters: int4"}, a.Parameters, "the text has the value alone")
	w.approve(refusal.Answer.ApprovalID)
	c.query("DEALLOCATE d")
	require.NoError(t, c.Parse(t.Context(), "d", "DELETE FROM t WHERE id <> $1", []uint32{23}))
	c.sync()
	c.query("SET gate.approval_id = '" + refusal.Answer.ApprovalID + "'")
	require.Equal(t, "approval_mismatch", state(c.refused("EXECUTE d (1)")))
	require.NoError(t, c.Parse(t.Context(), "e", "DELETE FROM t WHERE v = $1 AND id > $2", []uint32{18, 23}))
	c.sync()
	require.ErrorAs(t, c.refused("EXECUTE e ('abc', 0)"), &refusal)
	view = w.store.View()
	a, _, err = view.Approval(refusal.Answer.ApprovalID)
	require.NoError(t, errors.Join(err, view.Close()))
	require.Contains(t, a.Parameters[0], `types of the parameters: "char", int4`, "'abc' is 'a' under the first")
	require.Equal(t, "2", w.value("SELECT count(*) FROM t"))
}

func TestInShadowModeWhatWouldBeStoppedRunsWithAWarning(t *testing.T) {
	w := newWireWorld(t, func(o *Options) { o.Mode = ModeShadow })
	c := w.wire()
	c.query("INSERT INTO t VALUES (1, 'a')")
	done, err := c.Query(t.Context(), "DELETE FROM t WHERE id = 1", &rowsSink{})
	require.NoError(t, err)
	require.Equal(t, "DELETE 1", done.Tag)
	require.Equal(t, "01000", done.Notices[0].SQLState)
	require.Contains(t, done.Notices[0].Message, "REQUIRE_APPROVAL")
}

func TestACancelEndsWhatRunsAndNothingElse(t *testing.T) {
	w := newWireWorld(t, nil)
	c := w.wire()
	require.Equal(t, WireCancel{Cause: CancelNothingRuns}, c.Cancel(t.Context()))

	c.query("BEGIN")
	c.query("INSERT INTO t VALUES (1, 'a')")
	cancelled := make(chan string, 1)
	go func() {
		for w.value("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state = 'active' AND query LIKE 'SELECT pg_sleep%'") == "0" {
			runtime.Gosched()
		}
		became := c.Cancel(context.Background())
		if became.Unsent || became.Cause != "" {
			t.Error(became)
		}
		cancelled <- became.ExecutionID
	}()
	require.Equal(t, "57014", state(c.refused("SELECT pg_sleep(60)")))
	require.Regexp(t, "^exe_", <-cancelled)
	require.Equal(t, WireFailed, c.Status())
	tag, _ := c.query("COMMIT")
	require.Equal(t, "ROLLBACK", tag)
	require.Zero(t, w.Database.Stats().InUse)
	require.Equal(t, []string{"INSERT dispatched", "SELECT dispatched", "SELECT failure cancelled", "INSERT failure rolled_back"}, w.trail())
	require.Equal(t, "0", w.value("SELECT count(*) FROM t"))
}
