package pgexec

import (
	"slices"
	"strconv"
	"strings"
	"time"
)

// A pin is a session setting that travels as a startup parameter: it beats
// ALTER ROLE and ALTER DATABASE, and RESET ALL and DISCARD ALL return to it.
type pin struct {
	name, value string
	asserted    bool // compared with what the server shows; false where the platform decides, or nothing depends on it
}

// pins lists what is pinned for a pool. major is the server's; the settings of a
// later major must not be sent to an earlier one, which would refuse the login.
func (c Config) pins(kind poolKind, major int) []pin {
	searchPath, err := quoteSearchPath(c.SearchPath)
	if err != nil { // refused by check before any pool exists
		searchPath = "pg_temp"
	}
	readOnly := "off"
	if kind == reader {
		readOnly = "on"
	}
	list := []pin{
		{"standard_conforming_strings", "on", true},
		{"client_encoding", "UTF8", true},
		{"backslash_quote", "safe_encoding", true},
		{"search_path", searchPath, true},
		{"default_transaction_read_only", readOnly, true},
		{"default_transaction_isolation", "read committed", true},
		{"default_transaction_deferrable", "off", true},
		{"row_security", "on", true},
		{"transform_null_equals", "off", true},
		{"array_nulls", "on", true},
		{"xmloption", "content", true},
		{"DateStyle", "ISO, MDY", true},
		{"IntervalStyle", "postgres", true},
		{"TimeZone", "UTC", true},
		{"timezone_abbreviations", "Default", true}, // EST is another zone under Australia
		{"exit_on_error", "off", true},
		{"jit", "off", true}, // what compiles looks at no time limit and no cancel, and takes memory by the text
		{"extra_float_digits", "1", true},
		{"bytea_output", "hex", true},
		{"statement_timeout", millis(c.QueryTimeout), true},
		{"lock_timeout", millis(c.LockTimeout), true},
		{"idle_in_transaction_session_timeout", millis(c.IdleInTxTimeout), true},
		{"idle_session_timeout", "0", true},
		{"client_connection_check_interval", "2000", true},
		{"tcp_keepalives_idle", "30", false},
		{"tcp_user_timeout", "20000", false},
		{"application_name", "gate/" + kind.String(), false}, // means nothing to a text; the cleaning brings it back
	}
	if major >= 17 {
		list = append(list, pin{"transaction_timeout", millis(c.QueryTimeout + transactionSlack), true})
	}
	return list
}

// transactionSlack is how far transaction_timeout stands behind the statement's:
// room for evidence between the steps of a write.
const transactionSlack = 15 * time.Second

func millis(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }

// watchedBeside are settings that are no pins but must not change while we hold
// a connection. role is not current_user: SET ROLE to the same user shows, RESET ALL
// does not undo it, and policies of rows ask for it.
var watchedBeside = []string{"session_replication_role", "synchronous_commit", "track_counts", "role"}

// serversOwn are those of them that no role and no statement of a clean session has
// set: what differs there is another value in the server's files.
var serversOwn = []string{"session_replication_role", "synchronous_commit", "track_counts"}

// separator stands between the values that one query returns as one text.
const separator = "\x1f"

// A watch is how a pool looks at the settings of a connection: names in order,
// the query that shows them, and the query that asserts them at the start.
type watch struct {
	names     []string
	lookSQL   string // one row: see looking
	assertSQL string // one row: everything that is asserted once per connection
}

func newWatch(pins []pin) watch {
	var w watch
	for _, p := range pins {
		if p.asserted {
			w.names = append(w.names, p.name)
		}
	}
	w.names = append(w.names, watchedBeside...)
	w.lookSQL = "SELECT CASE WHEN $1 THEN pg_catalog.pg_current_xact_id() ELSE pg_catalog.pg_current_xact_id_if_assigned() END, CASE WHEN $2 THEN " +
		showing(w.names) + " ELSE " + showing(watchedBeside) + ` END,
 CASE WHEN $3 THEN pg_catalog.pg_advisory_unlock_all() IS NULL OR pg_catalog.setseed($4) IS NULL OR pg_catalog.pg_my_temp_schema() OPERATOR(pg_catalog.<>) 0::pg_catalog.oid
 OR EXISTS (SELECT FROM pg_catalog.pg_listening_channels()) OR EXISTS (SELECT FROM pg_catalog.pg_cursor() AS c WHERE c.is_holdable)
 OR EXISTS (SELECT FROM pg_catalog.pg_prepared_statement() AS p WHERE p.from_sql) END,
 CASE WHEN $5 IS NOT NULL THEN pg_catalog.set_config('synchronous_commit', $5, true) IS NULL OR ` + foreignSQL + ` END,
 pg_catalog.pg_my_temp_schema() OPERATOR(pg_catalog.<>) 0::pg_catalog.oid`
	w.assertSQL = `SELECT current_user, session_user, pg_catalog.current_database(), pg_catalog.current_setting('server_encoding'),
 pg_catalog.pg_backend_pid(), pg_catalog.pg_is_in_recovery(),
 (SELECT c.system_identifier FROM pg_catalog.pg_control_system() AS c),
 CASE WHEN pg_catalog.pg_is_in_recovery() THEN NULL ELSE pg_catalog.left(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 8) END,
 (SELECT w.stats_reset FROM pg_catalog.pg_stat_wal AS w),
 (SELECT a.backend_start FROM pg_catalog.pg_stat_get_activity(pg_catalog.pg_backend_pid()) AS a),
 (SELECT pg_catalog.string_agg(pg_catalog.concat(s.name, '=', s.setting), E'\x1f') FROM pg_catalog.pg_settings AS s),
 ` + showing(w.names) + `,
 (SELECT pg_catalog.concat_ws(' ', c.system_identifier, d.oid, pg_catalog.pg_postmaster_start_time()) FROM pg_catalog.pg_control_system() AS c, pg_catalog.pg_database AS d
   WHERE d.datname OPERATOR(pg_catalog.=) pg_catalog.current_database())`
	return w
}

// showing is an expression for the values of settings, and for who the session's users are.
func showing(names []string) string {
	var shown strings.Builder
	shown.WriteString("pg_catalog.concat_ws(E'\\x1f'")
	for _, name := range names {
		shown.WriteString(", pg_catalog.current_setting('" + name + "')")
	}
	shown.WriteString(", current_user, session_user)")
	return shown.String()
}

// foreignSQL asks whether there are servers of foreign tables, or were. They commit by
// themselves before the database does, one after the other (postgres_fdw, "Transaction
// Management"), so that a COMMIT which fails may leave a part. The size of the catalogue tells
// of one that was made and dropped again as well, in whatever transaction, and goes by no
// snapshot; VACUUM takes it back where no server is left.
const foreignSQL = "pg_catalog.pg_relation_size('pg_catalog.pg_foreign_server'::pg_catalog.regclass, 'main') OPERATOR(pg_catalog.<>) 0"

// assertedPins compares what the server runs with with what was pinned, in the
// base units of pg_settings. It returns the first setting that differs.
func assertedPins(pins []pin, shown string) (name, value string, ok bool) {
	settings := make(map[string]string)
	for entry := range strings.SplitSeq(shown, separator) {
		k, v, _ := strings.Cut(entry, "=")
		settings[k] = v
	}
	for _, p := range pins {
		if p.asserted && settings[p.name] != p.value {
			return p.name, settings[p.name], false
		}
	}
	if role := settings["session_replication_role"]; role != "origin" {
		return "session_replication_role", role, false
	}
	return "", "", true
}

// difference names the first setting in which two answers of a watch differ.
func (w watch) difference(want, got string) string {
	if name := w.differenceBut(nil, want, got); name != "" {
		return name
	}
	return "an unnamed setting"
}

// differenceBut leaves some settings out; "" means that the others agree. An answer
// without the pins is compared with the end of one that has them.
func (w watch) differenceBut(except map[string]string, want, got string) string {
	a, b := strings.Split(want, separator), strings.Split(got, separator)
	names := append(slices.Clone(w.names), "current_user", "session_user")
	pins := len(names) - len(b)
	if len(a) != len(names) || pins != 0 && pins != len(w.names)-len(watchedBeside) {
		return "an unnamed setting"
	}
	a, names = a[pins:], names[pins:]
	for i, name := range names {
		if _, skip := except[name]; !skip && a[i] != b[i] {
			return name
		}
	}
	return ""
}

// synchronousCommit picks the value out of a watch's answer.
func (w watch) synchronousCommit(shown string) string {
	values := strings.Split(shown, separator)
	if i := slices.Index(w.names, "synchronous_commit"); i >= 0 && i < len(values) {
		return values[i]
	}
	return ""
}
