package classify

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"writegate/fixtures/postgres"
)

// A lastingCase runs a function in a transaction that is rolled back. What is watched is
// another one then; with once, where watching changes it, another one than after a
// transaction that did not call the function.
type lastingCase struct {
	before, call, watch, after string
	once                       bool
	unseen                     string // why it is not run
}

const (
	watchSequence = `SELECT last_value FROM sq`
	watchSlots    = `SELECT string_agg(slot_name, ',' ORDER BY slot_name) FROM pg_replication_slots`
	watchReset    = `SELECT stats_reset FROM pg_stat_database WHERE datname = current_database()`
	dropSlots     = `SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots`
	logicalSlot   = `SELECT pg_create_logical_replication_slot('a', 'pgoutput')`
	physicalSlot  = `SELECT pg_create_physical_replication_slot('a', true)`
	someChanges   = `INSERT INTO kept SELECT n FROM generate_series(1, 500) AS n`
	peek          = `SELECT count(*) FROM pg_logical_slot_peek_binary_changes('a', NULL, NULL, 'proto_version', '1', 'publication_names', 'p', 'messages', 'true')`
	makeOrigin    = `SELECT pg_replication_origin_create('o')`
	dropOrigin    = `SELECT pg_replication_origin_session_reset() WHERE pg_replication_origin_session_is_setup(); SELECT pg_replication_origin_drop('o')`
	brinTable     = `CREATE TABLE b (n int); CREATE INDEX bi ON b USING brin (n) WITH (pages_per_range = 1); INSERT INTO b SELECT generate_series(1, 2000)`
	dropBrin      = `DROP TABLE b`
	victims       = `SELECT count(*) FROM pg_stat_activity WHERE application_name = 'victim' AND state = 'active'`
	onStandby     = "a standby's alone"
	toLog         = "writes to the server's log"
	toWAL         = "a record of the WAL that changes nothing"
	originOfNext  = "seen by who reads the origin of the next commit"
)

var lastingCases = map[string]lastingCase{
	"setval": {call: `SELECT setval('sq', 7)`, watch: watchSequence},

	"pg_logical_emit_message": {before: logicalSlot, call: `SELECT pg_logical_emit_message(false, 'a', 'b')`, watch: `INSERT INTO noise VALUES (1);` + peek, after: dropSlots}, // a commit writes the log out
	"pg_switch_wal":           {before: someChanges, call: `SELECT pg_switch_wal()`, watch: `SELECT pg_walfile_name(pg_current_wal_insert_lsn() + 1)`},
	"pg_create_restore_point": {unseen: toWAL}, "pg_log_standby_snapshot": {unseen: toWAL},
	"pg_backup_start":     {call: `SELECT pg_backup_start('x', true)`, watch: `SELECT pg_backup_stop(false)`, once: true},
	"pg_backup_stop":      {before: `SELECT pg_backup_start('x', true)`, call: `SELECT pg_backup_stop(false)`, watch: `SELECT pg_backup_start('x', true)`, once: true, after: `SELECT pg_backup_stop(false)`},
	"pg_promote":          {unseen: onStandby},
	"pg_wal_replay_pause": {unseen: onStandby}, "pg_wal_replay_resume": {unseen: onStandby}, "pg_sync_replication_slots": {unseen: onStandby},

	"pg_create_physical_replication_slot": {call: physicalSlot, watch: watchSlots, after: dropSlots},
	"pg_create_logical_replication_slot":  {call: logicalSlot, watch: watchSlots, after: dropSlots},
	"pg_copy_physical_replication_slot":   {before: physicalSlot, call: `SELECT pg_copy_physical_replication_slot('a', 'b')`, watch: watchSlots, after: dropSlots},
	"pg_copy_logical_replication_slot":    {before: logicalSlot, call: `SELECT pg_copy_logical_replication_slot('a', 'b')`, watch: watchSlots, after: dropSlots},
	"pg_drop_replication_slot":            {before: physicalSlot, call: `SELECT pg_drop_replication_slot('a')`, watch: watchSlots, after: dropSlots},
	"pg_replication_slot_advance": {before: physicalSlot + ";" + someChanges, call: `SELECT pg_replication_slot_advance('a', pg_current_wal_flush_lsn())`,
		watch: `SELECT restart_lsn FROM pg_replication_slots`, after: dropSlots},
	"pg_logical_slot_get_binary_changes": {before: logicalSlot + ";" + someChanges, call: strings.Replace(peek, "peek", "get", 1), watch: peek, after: dropSlots},
	"pg_logical_slot_get_changes":        {unseen: "as the one for binary changes; it needs a plugin that gives text"},

	"pg_replication_origin_advance": {before: makeOrigin, call: `SELECT pg_replication_origin_advance('o', '0/1234')`, watch: `SELECT pg_replication_origin_progress('o', false)`, after: dropOrigin},
	"pg_replication_origin_drop": {before: makeOrigin + `; SELECT pg_replication_origin_advance('o', '0/1234')`, call: `SELECT pg_replication_origin_drop('o')`,
		watch: `SELECT pg_replication_origin_progress('o', false)`, after: dropOrigin},
	"pg_replication_origin_session_setup": {before: makeOrigin, call: `SELECT pg_replication_origin_session_setup('o')`, watch: `SELECT pg_replication_origin_session_is_setup()`, after: dropOrigin},
	"pg_replication_origin_session_reset": {before: makeOrigin + `; SELECT pg_replication_origin_session_setup('o')`, call: `SELECT pg_replication_origin_session_reset()`,
		watch: `SELECT pg_replication_origin_session_is_setup()`, after: dropOrigin},
	"pg_replication_origin_xact_setup": {unseen: originOfNext}, "pg_replication_origin_xact_reset": {unseen: originOfNext},

	"pg_cancel_backend":              {call: `SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE application_name = 'victim'`, watch: victims},
	"pg_terminate_backend":           {call: `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'victim'`, watch: victims},
	"pg_reload_conf":                 {call: `SELECT pg_reload_conf()`, watch: `SELECT pg_conf_load_time()`},
	"pg_log_backend_memory_contexts": {unseen: toLog}, "pg_rotate_logfile": {unseen: toLog}, "pg_rotate_logfile_old": {unseen: toLog},

	"pg_stat_reset":                          {call: `SELECT pg_stat_reset()`, watch: watchReset},
	"pg_stat_reset_single_table_counters":    {call: `SELECT pg_stat_reset_single_table_counters('kept'::regclass)`, watch: watchReset},
	"pg_stat_reset_single_function_counters": {call: `SELECT pg_stat_reset_single_function_counters('now'::regproc)`, watch: watchReset},
	"pg_stat_reset_shared":                   {call: `SELECT pg_stat_reset_shared('bgwriter')`, watch: `SELECT stats_reset FROM pg_stat_bgwriter`},
	"pg_stat_reset_slru":                     {call: `SELECT pg_stat_reset_slru(NULL)`, watch: `SELECT max(stats_reset) FROM pg_stat_slru`},
	"pg_stat_reset_replication_slot":         {before: logicalSlot, call: `SELECT pg_stat_reset_replication_slot('a')`, watch: `SELECT stats_reset FROM pg_stat_replication_slots`, after: dropSlots},
	"pg_stat_reset_subscription_stats":       {unseen: "there is nothing to reset before a subscription failed"},
	"pg_stat_reset_backend_stats":            {call: `SELECT pg_stat_reset_backend_stats(pg_backend_pid())`, watch: `SELECT max(stats_reset) FROM pg_stat_get_backend_io(pg_backend_pid())`},

	"brin_summarize_new_values": {before: brinTable, call: `SELECT brin_summarize_new_values('bi')`, watch: `SELECT brin_summarize_new_values('bi')`, once: true, after: dropBrin},
	"brin_summarize_range":      {before: brinTable, call: `SELECT brin_summarize_range('bi', 1)`, watch: `SELECT brin_summarize_range('bi', 1)`, once: true, after: dropBrin},
	"brin_desummarize_range": {before: brinTable + `; SELECT brin_summarize_new_values('bi')`, call: `SELECT brin_desummarize_range('bi', 1)`,
		watch: `SELECT brin_summarize_range('bi', 1)`, once: true, after: dropBrin},
	"gin_clean_pending_list": {before: `CREATE TABLE g (v int[]); CREATE INDEX gi ON g USING gin (v) WITH (fastupdate = on); INSERT INTO g SELECT ARRAY[n] FROM generate_series(1, 100) AS n`,
		call: `SELECT gin_clean_pending_list('gi')`, watch: `SELECT gin_clean_pending_list('gi') > 0`, once: true, after: `DROP TABLE g`},

	"lo_export":                     {before: `SELECT lo_from_bytea(424242, 'x')`, call: `SELECT lo_export(424242, 'lasting.out')`, watch: `SELECT size FROM pg_stat_file('lasting.out', true)`, after: `SELECT lo_unlink(424242)`},
	"pg_stop_making_pinned_objects": {unseen: "sets the counter of object ids, for initdb alone"},

	"query_to_xml":               {call: `SELECT query_to_xml('SELECT setval(''sq'', 8)', true, true, '')`, watch: watchSequence},
	"query_to_xml_and_xmlschema": {call: `SELECT query_to_xml_and_xmlschema('SELECT setval(''sq'', 9)', true, true, '')`, watch: watchSequence},
	"ts_stat":                    {call: `SELECT ts_stat('SELECT setval(''sq'', 10)::text::tsvector')`, watch: watchSequence},
	"ts_rewrite":                 {call: `SELECT ts_rewrite('a'::tsquery, 'SELECT ''a''::tsquery, setval(''sq'', 11)::text::tsquery')`, watch: watchSequence},
}

// gaps only use up numbers, of sequences, objects or transactions.
var gaps = []string{"nextval", "pg_nextoid", "pg_current_xact_id", "txid_current"}

type lastingServer struct {
	secretServer
	victim *pgconn.PgConn
}

// undone runs a call in a transaction that is rolled back, and cleans the session as
// the gate does. What the server says of the call does not matter.
func (s *lastingServer) undone(call string) error {
	s.exec(s.conn, "BEGIN")
	_, err := s.conn.Exec(context.Background(), call).ReadAll()
	s.exec(s.conn, "ROLLBACK")
	s.exec(s.conn, "DISCARD ALL")
	return err
}

func (s *lastingServer) watched(sql string) string {
	results, err := s.conn.Exec(context.Background(), sql).ReadAll()
	if err != nil {
		return "refused"
	}
	return fmt.Sprintf("%q", results[len(results)-1].Rows)
}

// hold has a victim run, where there is none.
func (s *lastingServer) hold() {
	if s.watched(victims) == s.watched("SELECT 1") {
		return
	}
	s.victim = s.connect()
	s.exec(s.victim, "SET application_name = 'victim'")
	v := s.victim
	go func() { _, _ = v.Exec(context.Background(), "SELECT pg_sleep(600)").ReadAll() }()
	require.Eventually(s.t, func() bool { return s.watched(victims) == s.watched("SELECT 1") }, 20*time.Second, 5*time.Millisecond)
}

// run gives what is watched before and after.
func (s *lastingServer) run(c *lastingCase, call string, enough func(was, is string) bool) (was, is string) {
	s.hold()
	s.exec(s.conn, c.before)
	if !c.once {
		was = s.watched(c.watch)
	}
	require.NoError(s.t, s.undone(call), call)
	is = s.watched(c.watch)
	for until := time.Now().Add(20 * time.Second); !enough(was, is) && time.Now().Before(until); is = s.watched(c.watch) {
		time.Sleep(5 * time.Millisecond)
	}
	s.exec(s.conn, c.after)
	return was, is
}

func newLastingServer(t *testing.T) *lastingServer {
	s := &lastingServer{secretServer: secretServer{t: t, cluster: postgres.ClusterForTest(t, map[string]string{"wal_level": "logical", "autovacuum": "off"})}}
	s.conn = s.connect()
	s.exec(s.conn, `CREATE SEQUENCE sq; CREATE TABLE kept (n int); CREATE TABLE noise (n int); CREATE PUBLICATION p FOR TABLE kept`)
	return s
}

// Each function of the table that the server has leaves something behind a rollback, or
// says why nobody looks; and all of the table are known, and none is safe.
func TestEveryLastingFunctionOutlastsARollback(t *testing.T) {
	rows, err := tsv(lastingTSV, 3)
	require.NoError(t, err)
	s := newLastingServer(t)
	tb := newTestTables(t, Config{ServerMajor: s.cluster.Major})
	extensions, err := tsv(extensionFunctionsTSV, 5)
	require.NoError(t, err)
	seen, builtin := 0, 0
	for _, r := range rows {
		if r[0] != "" {
			require.True(t, slices.ContainsFunc(extensions, func(e []string) bool { return e[0] == r[0] && e[1] == r[1] && e[3] == "forbidden" }), "%v", r)
			require.True(t, OutlastsRollback(nil, []string{"ext." + r[1]}, nil))
			continue
		}
		builtin++
		require.True(t, OutlastsRollback(nil, []string{"abs", r[1]}, nil))
		require.False(t, OutlastsRollback(nil, []string{"public." + r[1]}, nil), "somebody's own")
		c, known := lastingCases[r[1]]
		require.True(t, known, "%s has no case", r[1])
		if c.unseen != "" || len(s.rows(`SELECT 1 FROM pg_proc WHERE pronamespace = 'pg_catalog'::regnamespace AND proname = '`+r[1]+`'`)) == 0 {
			continue
		}
		classified := mustClassify(t, tb, c.call)
		require.False(t, classified.SafeRead, c.call)
		require.True(t, OutlastsRollback(classified.QueryTypes, classified.Functions, classified.RiskSignals), c.call)
		was, still := s.run(&c, "SELECT 1", func(string, string) bool { return true })
		if !c.once {
			require.Equal(t, was, still, "%s: what is watched changes by itself", r[1])
		}
		was, is := s.run(&c, c.call, func(was, is string) bool { return is != cmp.Or(was, still) })
		require.NotEqual(t, cmp.Or(was, still), is, r[1])
		seen++
	}
	require.Len(t, lastingCases, builtin)
	require.Greater(t, seen, 30)
}

// randomArguments are values of the types of arguments; what has another type is called with NULL.
var randomArguments = map[string]string{
	"oid": "'kept'::regclass::oid", "regclass": "'sq'::regclass", "int4": "1", "int8": "7", "int2": "1::int2", "bool": "true", "text": "'sq'", "name": "'sq'::name",
	"bytea": "'x'::bytea", "float8": "0.5::float8", "pg_lsn": "pg_current_wal_lsn()", "interval": "'0'::interval", "timestamptz": "now()", "xid": "'3'::xid", "xid8": "'3'::xid8",
}

const everythingSQL = `SELECT (SELECT last_value::text || is_called FROM sq), (SELECT string_agg(x::text, '|') FROM pg_replication_slots x), (SELECT string_agg(x::text, '|') FROM pg_replication_origin_status x),
  (SELECT count(*) FROM pg_replication_origin), (SELECT stats_reset FROM pg_stat_database WHERE datname = current_database()), (SELECT stats_reset FROM pg_stat_bgwriter), (SELECT max(stats_reset) FROM pg_stat_slru),
  (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())), (SELECT count(*) FROM pg_largeobject_metadata), (SELECT md5(string_agg(name || setting, ',' ORDER BY name)) FROM pg_settings WHERE name NOT LIKE '%.%'),
  (SELECT string_agg(f, ',' ORDER BY f) FROM pg_ls_dir('.') f), (SELECT count(*) FROM pg_stat_activity WHERE application_name = 'victim' AND state = 'active'), pg_conf_load_time(), pg_replication_origin_session_is_setup(),
  (SELECT count(*) FROM pg_class), (SELECT count(*) FROM pg_collation), (SELECT count(*) FROM pg_listening_channels())`

// No other volatile function of the server leaves anything that can be watched.
func TestNoOtherBuiltInOutlastsARollback(t *testing.T) {
	s := newLastingServer(t)
	s.hold()
	was, called, ran := s.watched(everythingSQL), 0, 0
	require.NotEqual(t, "refused", was)
	for _, r := range s.rows(`SELECT proname, array_to_string(ARRAY(SELECT t.typname FROM unnest(proargtypes) WITH ORDINALITY a(o, n) JOIN pg_type t ON t.oid = a.o ORDER BY n), ' ')
	  FROM pg_proc WHERE pronamespace = 'pg_catalog'::regnamespace AND prokind = 'f' AND provolatile = 'v' AND proname !~ '^(binary_upgrade|pg_sleep)' AND prorettype NOT IN ('trigger'::regtype, 'event_trigger'::regtype)
	   AND NOT 2281 = ANY (proargtypes::oid[]) ORDER BY oid`) {
		if OutlastsRollback(nil, r[:1], nil) || slices.Contains(gaps, r[0]) {
			continue
		}
		var list []string
		for typ := range strings.FieldsSeq(r[1]) {
			list = append(list, cmp.Or(randomArguments[typ], "NULL"))
		}
		call := fmt.Sprintf(`SELECT pg_catalog."%s"(%s)`, r[0], strings.Join(list, ", "))
		called++
		if s.undone(call) == nil {
			ran++
		}
		require.Equal(t, was, s.watched(everythingSQL), call)
	}
	require.Greater(t, called, 100)
	require.Greater(t, ran, 50)
}
