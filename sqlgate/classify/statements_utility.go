package classify

import (
	"slices"
	"strings"
)

// copyTable tells the roads of COPY apart: the client's connection, a file of
// the server, a program on it.
func copyTable(w *walk, i int32, s *statement) {
	for o := range w.items(i, "options") {
		if !slices.Contains(copyOptions, string(w.raw(o, "defname"))) {
			w.unknownOption(o)
		}
	}
	from := w.has(i, "is_from")
	if target := w.child(i, "relation"); target >= 0 {
		schema, name := w.relation(target)
		if from {
			w.writes(schema, name, target)
			w.copiedColumns(schema, name, i)
		} else {
			w.reads(schema, name, target)
		}
	}
	if from {
		s.query, s.class = TypeCopyFrom, ClassWrite
	}
	switch {
	case w.has(i, "is_program"):
		s.class, s.run = ClassWrite, RunTransaction
		w.raise(SignalServerProgram, "", i)
	case w.child(i, "filename") >= 0:
		s.class, s.run = ClassWrite, RunTransaction
		w.raise(SignalServerFileAccess, "", i)
	}
}

// copyOptions of PostgreSQL 15 to 18.
var copyOptions = []string{
	"format", "freeze", "delimiter", "null", "default", "header", "quote", "escape", "force_quote",
	"force_not_null", "force_null", "encoding", "on_error", "log_verbosity", "reject_limit",
}

func (w *walk) copiedColumns(schema, name []byte, i int32) {
	none := true
	for c := range w.items(i, "attlist") {
		none = false
		w.column(schema, name, w.text(c, "sval"))
	}
	if none {
		w.column(schema, name, nil)
	}
}

// pinnedSettings are those that decide how the server reads a text, as whom it
// runs and whether it may write (design/classification.md part 1).
var pinnedSettings = map[string]bool{
	"standard_conforming_strings": true, "client_encoding": true, "backslash_quote": true, "search_path": true,
	"row_security": true, "session_replication_role": true, "transform_null_equals": true,
	"default_transaction_read_only": true, "transaction_read_only": true, "role": true, "session_authorization": true,
}

func pinned(setting string) bool { return pinnedSettings[strings.ToLower(setting)] }

// openSettings are those of the server's own that set_config may set: they decide about
// nothing but plans, memory and what the client is told.
var openSettings = []string{"application_name", "client_min_messages", "work_mem"}

// librarySettings are the first parts of the names that languages and extensions of the
// server have for their settings. plpgsql.check_asserts switches off checks of triggers.
var librarySettings = []string{
	"age", "anon", "auto_explain", "citus", "cron", "orafce", "pg_hint_plan", "pg_stat_statements", "pgaudit", "pgsodium", "pljava", "pllua", "plperl", "plpgsql", "plpython", "plr", "pltcl", "plv8", "postgis", "postgres_fdw",
	"sepgsql", "timescaledb",
}

// setsFreely holds for a setting that is an application's own (app.tenant), or an open one,
// and for jit = off, which is pinned and which asyncpg sets before it asks for types. All
// others decide how the gate's session reads, writes, limits, logs or plans. SET is
// never sent, and what a role or a database is given the pins beat.
func setsFreely(setting, value string) bool {
	setting = strings.ToLower(setting)
	if library, _, own := strings.Cut(setting, "."); own {
		return !slices.Contains(librarySettings, library)
	}
	return setting == "jit" && value == "off" || slices.Contains(openSettings, setting) || strings.HasPrefix(setting, "enable_")
}

// argumentText gives the argument of a call at a place, from 0, if it is a string
// constant, also one cast to text.
func (w *walk) argumentText(call int32, place int) (string, bool) {
	for arg := range w.items(call, "args") {
		if place--; place < 0 {
			text, ok := w.constantText(arg)
			return text, ok && !w.has(call, "func_variadic")
		}
	}
	return "", false
}

func (w *walk) constantText(i int32) (string, bool) {
	if w.is(i, "TypeCast") && w.isTextType(w.child(i, "typeName")) {
		i = w.child(i, "arg")
	}
	value := w.child(i, "sval")
	if !w.is(i, "A_Const") || value < 0 {
		return "", false
	}
	return string(w.text(value, "sval")), true
}

func (w *walk) isTextType(i int32) bool {
	schema, name := w.qualified(i, "names")
	return (len(schema) == 0 || string(schema) == "pg_catalog") && string(name) == "text" && !w.has(i, "arrayBounds")
}

func show(w *walk, i int32, _ *statement) {
	if name := string(w.text(i, "name")); w.t.secretSetting(name) {
		w.raise(SignalSecretCatalogRead, strings.ToLower(name), i)
	}
}

// set judges SET and RESET.
func set(w *walk, i int32, s *statement) {
	s.signals = sig(SignalSessionChange)
	name := strings.ToLower(string(w.text(i, "name")))
	kind := string(w.raw(i, "kind"))
	if strings.HasPrefix(kind, "VAR_RESET") {
		s.query = TypeReset
	}
	if kind == "VAR_RESET_ALL" || pinned(name) || w.setsAccessMode(i) {
		w.raise(SignalIdentitySwitch, name, i)
	}
	if kind == "VAR_SET_MULTI" || strings.HasPrefix(name, "transaction_") {
		w.raise(SignalTransactionControl, name, i)
	}
}

// setsAccessMode sees READ WRITE and READ ONLY of SET TRANSACTION.
func (w *walk) setsAccessMode(i int32) bool {
	for o := range w.items(i, "args") {
		if string(w.raw(o, "defname")) == "transaction_read_only" {
			return true
		}
	}
	return false
}

// settingOfOther judges a SET that belongs to a role, a database, the server or
// a function instead of the session, and reports whether it is one. A function
// that pins its search_path is the better for it, one that takes another role
// is not.
func (w *walk) settingOfOther(i int32) bool {
	if !w.is(i, "VariableSetStmt") || i == w.root {
		return false
	}
	name := strings.ToLower(string(w.text(i, "name")))
	switch parent := w.owner(i); {
	case w.is(parent, "AlterRoleSetStmt"), w.is(parent, "AlterDatabaseSetStmt"):
		if string(w.raw(i, "kind")) == "VAR_RESET_ALL" || pinned(name) {
			w.raise(SignalIdentitySwitch, name, i)
		}
	case w.is(parent, "AlterSystemStmt"):
	case w.is(parent, "DefElem"):
		if name == "role" || name == "session_authorization" || name == "session_replication_role" {
			w.raise(SignalIdentitySwitch, name, i)
		}
	default:
		return false
	}
	return true
}

func discard(w *walk, i int32, _ *statement) {
	switch string(w.raw(i, "target")) {
	case "DISCARD_ALL":
		w.raise(SignalIdentitySwitch, "", i)
		w.writesAll([]byte("pg_temp"), i)
	case "DISCARD_TEMP":
		w.writesAll([]byte("pg_temp"), i)
	}
}

func transaction(w *walk, i int32, s *statement) {
	s.query = transactionTypes[string(w.raw(i, "kind"))]
	if s.query == "" {
		s.query, s.class = TypeUnknown, ClassUnknown
		w.raise(SignalUnknownNode, "TransactionStmt.kind", i)
	}
}

var transactionTypes = map[string]string{
	"TRANS_STMT_BEGIN": TypeBegin, "TRANS_STMT_START": TypeBegin, "TRANS_STMT_COMMIT": TypeCommit,
	"TRANS_STMT_COMMIT_PREPARED": TypeCommit, "TRANS_STMT_ROLLBACK": TypeRollback, "TRANS_STMT_ROLLBACK_TO": TypeRollback,
	"TRANS_STMT_ROLLBACK_PREPARED": TypeRollback, "TRANS_STMT_SAVEPOINT": TypeSavepoint,
	"TRANS_STMT_RELEASE": TypeRelease, "TRANS_STMT_PREPARE": TypePrepareTx,
}

// do judges an anonymous block by its language; without one it is plpgsql.
func do(w *walk, i int32, _ *statement) { w.language(i, "args", "plpgsql") }

// language raises server_program for code in a language that is not confined
// to the database.
func (w *walk) language(i int32, list, missing string) {
	name := missing
	if o := w.option(i, list, "language"); o >= 0 {
		name = string(w.text(w.child(o, "arg"), "sval"))
	}
	if name != "sql" && name != "plpgsql" {
		w.raise(SignalServerProgram, "", i)
	}
}

func vacuum(w *walk, i int32, s *statement) {
	for o := range w.items(i, "options") {
		if !slices.Contains(vacuumOptions, string(w.raw(o, "defname"))) {
			w.unknownOption(o)
		}
	}
	if !w.has(i, "rels") {
		w.writesAll(nil, i)
	}
	if !w.has(i, "is_vacuumcmd") {
		s.query, s.run = TypeAnalyze, RunTransaction
		return
	}
	if full := w.option(i, "options", "full"); full >= 0 && !w.isOff(full) {
		w.advice.addWord(AdviceRewrite)
	}
}

// vacuumOptions of VACUUM and ANALYZE in PostgreSQL 15 to 18.
var vacuumOptions = []string{
	"full", "freeze", "verbose", "analyze", "disable_page_skipping", "skip_locked", "index_cleanup", "process_main",
	"process_toast", "truncate", "parallel", "skip_database_stats", "only_database_stats", "buffer_usage_limit",
}

func reindex(w *walk, i int32, s *statement) {
	concurrently := w.option(i, "params", "concurrently")
	if concurrently >= 0 && !w.isOff(concurrently) {
		s.run = RunAlone
		w.flags.addWord(FlagConcurrently)
	}
	switch string(w.raw(i, "kind")) {
	case "REINDEX_OBJECT_INDEX", "REINDEX_OBJECT_TABLE":
		return
	case "REINDEX_OBJECT_SCHEMA":
		w.writesAll(w.text(i, "name"), i)
	default:
		w.writesAll(nil, i)
	}
	s.run = RunAlone
}

func cluster(w *walk, i int32, s *statement) {
	w.advice.addWord(AdviceRewrite)
	if w.child(i, "relation") < 0 {
		s.run = RunAlone
		w.writesAll(nil, i)
	}
}

func refresh(w *walk, i int32, _ *statement) {
	if w.has(i, "skipData") { // WITH NO DATA
		w.raiseMore(SignalDestructiveDDL, i)
	}
}
