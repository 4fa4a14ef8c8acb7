package classify

import (
	"bytes"
	"slices"
	"strings"
)

func createIndex(w *walk, i int32, s *statement) {
	if w.has(i, "concurrent") {
		s.run = RunAlone
	}
}

// createFunction judges the language; a body written as statements is SQL.
func createFunction(w *walk, i int32, _ *statement) {
	missing := ""
	if w.child(i, "sql_body") >= 0 {
		missing = "sql"
	}
	w.language(i, "options", missing)
	if o := w.option(i, "options", "security"); o >= 0 && !w.isOff(o) {
		w.raise(SignalPrivilegeChange, "", i)
	}
	w.made(i, "funcname")
}

// made records a function, or what acts as one, that a statement makes. Without a
// schema it is none of pg_catalog, whatever it is called.
func (w *walk) made(i int32, list string) {
	if schema, name := w.qualified(i, list); len(name) != 0 {
		w.foreign(schema, name)
	}
}

// bindsFunction records the function of a trigger, which has no arguments.
func bindsFunction(w *walk, i int32, _ *statement) { w.bound(i, "funcname", 0) }

// bound records a function that a statement names without calling it: it drops,
// changes or binds it. The number of its arguments is -1 where the text does not
// say it.
func (w *walk) bound(i int32, list string, args int) {
	schema, name := w.qualified(i, list)
	if len(name) == 0 {
		return
	}
	if f := w.t.builtin(schema, name); f != nil && (args < 0 || w.hasArguments(f, args)) {
		w.functions.addWord(f.name)
		return
	}
	w.foreign(schema, name)
}

// hasArguments reports whether every server that the statement may reach has a
// function with so many arguments.
func (w *walk) hasArguments(f *function, args int) bool {
	var on versions
	for k := range f.forms {
		if of := &f.forms[k]; of.most == args && of.kind != castForm {
			on |= of.versions
		}
	}
	return on.in(w.t.engine.ServerMajor)
}

func onObjectWithArgs(w *walk, i int32) {
	args := -1
	if !w.has(i, "args_unspecified") {
		args = 0
		for range w.items(i, "objargs") {
			args++
		}
	}
	w.bound(i, "objname", args)
}

// define judges CREATE of what has no node of its own. Collations and text
// search configurations and dictionaries hold no code.
func define(w *walk, i int32, s *statement) {
	switch string(w.raw(i, "kind")) {
	case "OBJECT_COLLATION", "OBJECT_TSCONFIGURATION", "OBJECT_TSDICTIONARY":
	default:
		s.signals = sig(SignalOpaqueCode)
		w.made(i, "defnames")
	}
}

func createExtension(w *walk, i int32, _ *statement) {
	if o := w.option(i, "options", "cascade"); o >= 0 {
		w.cascade(o)
	}
}

// importSchema writes the foreign tables it makes, under their remote names;
// which these are the text says only of LIMIT TO.
func importSchema(w *walk, i int32, _ *statement) {
	schema := w.text(i, "local_schema")
	if string(w.raw(i, "list_type")) != "FDW_IMPORT_SCHEMA_LIMIT_TO" {
		w.writesAll(schema, i)
		return
	}
	for r := range w.items(i, "table_list") {
		name := w.text(r, "relname")
		w.writes(schema, name, r)
		w.column(schema, name, nil)
	}
}

func rename(w *walk, i int32, s *statement) {
	w.advice.addWord(AdviceBreaksClients)
	if string(w.raw(i, "renameType")) == "OBJECT_ROLE" {
		s.query, s.class, s.signals = TypeAlterRole, ClassDCL, sig(SignalPrivilegeChange)
	}
	w.newName(i)
	w.typeOf(i, "renameType")
	w.foreignObject(i, "renameType")
	w.foreignObject(i, "relationType")
}

// raiseMore raises a signal that LockedVersion does not have there.
func (w *walk) raiseMore(signal string, i int32) {
	w.extended = true
	w.raise(signal, "", i)
}

// foreignObject sees what stands for something at another server. Its name and its
// schema are those of the table there, unless it has options that say otherwise.
func (w *walk) foreignObject(i int32, kind string) {
	switch string(w.raw(i, kind)) {
	case "OBJECT_FOREIGN_TABLE", "OBJECT_FOREIGN_SERVER", "OBJECT_FDW":
		w.raiseMore(SignalRemoteAccess, i)
	}
}

// alterOwner records what its new owner may do everything with.
func alterOwner(w *walk, i int32, _ *statement) {
	if string(w.raw(i, "objectType")) == "OBJECT_SCHEMA" {
		w.writesAll(w.text(w.child(i, "object"), "sval"), i)
	}
	w.typeOf(i, "objectType")
}

// view sees one that is made to read with its owner's rights, past the row security of
// who asks.
func view(w *walk, i int32, _ *statement) {
	for _, name := range ownersRights {
		o := w.option(i, "options", name)
		if o < 0 {
			continue
		}
		on := w.child(o, "arg") // the grammar takes off for the name of a type
		if value := string(w.text(on, "sval")); on >= 0 && value != "true" && value != "on" {
			w.raiseMore(SignalPrivilegeChange, i)
		}
	}
}

// ownersRights are the options of a view that decide whose rights and row security hold
// behind it (CREATE VIEW).
var ownersRights = []string{"security_invoker", "security_barrier"}

func alterDatabase(w *walk, i int32, s *statement) {
	if w.option(i, "options", "tablespace") >= 0 {
		s.run = RunAlone
		w.writesAll(nil, i)
	}
}

func grant(w *walk, i int32, s *statement) {
	if !w.has(i, "is_grant") {
		s.query = TypeRevoke
	}
	w.grantsAll(i)
}

// drop records the relations that DROP names; of what hangs on a table the
// table.
func drop(w *walk, i int32, s *statement) {
	if w.has(i, "concurrent") {
		s.run = RunAlone
	}
	kind := string(w.raw(i, "removeType"))
	switch kind {
	case "OBJECT_EXTENSION": // its tables go with it
		w.writesAll(nil, i)
	case "OBJECT_POLICY", "OBJECT_TRIGGER", "OBJECT_RULE", "OBJECT_EVENT_TRIGGER": // as switching it off
		w.raiseMore(SignalPrivilegeChange, i)
	}
	for object := range w.items(i, "objects") {
		w.object(kind, object)
	}
}

// aboutObject records the relation of COMMENT, SECURITY LABEL and ALTER EXTENSION.
func aboutObject(w *walk, i int32, _ *statement) {
	if object := w.child(i, "object"); object >= 0 {
		w.object(string(w.raw(i, "objtype")), object)
	}
}

// object records the relation in an object's name, by the object's kind.
func (w *walk) object(kind string, object int32) {
	if kind == "OBJECT_SCHEMA" && w.is(w.owner(object), "DropStmt") {
		w.writesAll(w.text(object, "sval"), object)
	}
	if !w.is(object, "List") {
		return
	}
	list := w.child(object, "items")
	if list < 0 {
		return
	}
	switch kind {
	case "OBJECT_TABLE", "OBJECT_VIEW", "OBJECT_MATVIEW", "OBJECT_INDEX", "OBJECT_SEQUENCE", "OBJECT_FOREIGN_TABLE":
		w.named(list, 0)
	case "OBJECT_COLUMN", "OBJECT_TABCONSTRAINT", "OBJECT_TRIGGER", "OBJECT_RULE", "OBJECT_POLICY":
		w.named(list, 1)
	}
}

// alterTable takes its type from its commands, which the walk judges one by one.
func alterTable(w *walk, i int32, s *statement) {
	if string(w.raw(i, "objtype")) == "OBJECT_FOREIGN_TABLE" {
		s.signals = sig(SignalRemoteAccess)
	}
	for c := range w.items(i, "cmds") {
		switch string(w.raw(c, "subtype")) {
		case "AT_ChangeOwner":
			s.query, s.class = TypeAlterOwner, ClassDCL
		case "AT_DetachPartition":
			if w.has(w.child(c, "def"), "concurrent") {
				s.run = RunAlone
			}
		}
	}
}

// onAlterTableCmd gives a command's signals and advice.
func onAlterTableCmd(w *walk, i int32) {
	subtype := strings.TrimPrefix(string(w.raw(i, "subtype")), "AT_")
	switch {
	case subtype == "DropColumn" || subtype == "DropConstraint" || subtype == "SetUnLogged":
		w.raise(SignalDestructiveDDL, "", i)
	case strings.HasSuffix(subtype, "RowSecurity"), strings.Contains(subtype, "Trig"), strings.HasSuffix(subtype, "Rule"), subtype == "ChangeOwner":
		w.raise(SignalPrivilegeChange, "", i)
	case subtype == "SetAccessMethod":
		w.accessMethod(w.text(i, "name"), i)
	case strings.HasSuffix(subtype, "GenericOptions"): // whatever it calls a foreign table
		w.raiseMore(SignalRemoteAccess, i)
	case strings.HasSuffix(subtype, "RelOptions"):
		for _, name := range ownersRights {
			if w.option(w.child(i, "def"), "items", name) >= 0 {
				w.raiseMore(SignalPrivilegeChange, i)
			}
		}
	case subtype == "AlterColumnType":
		if using := w.child(w.child(i, "def"), "raw_default"); using >= 0 && !w.isColumn(using, w.text(i, "name")) {
			w.raiseMore(SignalDestructiveDDL, i)
		}
	case subtype == "SetIdentity":
		if w.option(w.child(i, "def"), "items", "restart") >= 0 {
			w.raiseMore(SignalSequenceChange, i)
		}
	}
	for _, a := range w.commandAdvice(i, subtype) {
		w.advice.addWord(a)
	}
	if lock := w.lockOf(i, subtype); lock != "" {
		w.advice.addWord(lock)
	}
}

// commandAdvice is what a command does besides the lock that it takes.
func (w *walk) commandAdvice(i int32, subtype string) []string {
	def := w.child(i, "def")
	switch subtype {
	case "AlterColumnType", "SetLogged", "SetUnLogged", "SetAccessMethod", "SetTableSpace":
		return []string{AdviceRewrite}
	case "AddColumn":
		return w.columnAdvice(def)
	case "AddConstraint":
		return w.constraintAdvice(def)
	case "SetNotNull", "ValidateConstraint", "AttachPartition":
		return []string{AdviceScan}
	case "DropColumn":
		return []string{AdviceBreaksClients}
	}
	return nil
}

// constraintAdvice: CHECK and FOREIGN KEY read the table unless NOT VALID.
func (w *walk) constraintAdvice(c int32) []string {
	kind := string(w.raw(c, "contype"))
	if (kind == "CONSTR_CHECK" || kind == "CONSTR_FOREIGN") && !w.has(c, "skip_validation") {
		return []string{AdviceScan}
	}
	return nil
}

// columnAdvice: a new column rewrites the table unless its value is one for all rows
// (https://www.postgresql.org/docs/current/sql-altertable.html, "Notes"). Whether another
// function than those of the time is volatile is not looked up: it is only advice.
func (w *walk) columnAdvice(column int32) []string {
	var advice []string
	if _, name := w.qualified(w.child(column, "typeName"), "names"); strings.HasSuffix(string(name), "serial") || strings.HasPrefix(string(name), "serial") {
		advice = append(advice, AdviceRewrite)
	}
	for c := range w.items(column, "constraints") {
		switch string(w.raw(c, "contype")) {
		case "CONSTR_IDENTITY", "CONSTR_GENERATED":
			advice = append(advice, AdviceRewrite)
		case "CONSTR_DEFAULT":
			value := w.child(c, "raw_expr")
			for w.is(value, "TypeCast") {
				value = w.child(value, "arg")
			}
			_, name := w.qualified(value, "funcname")
			oneMoment := w.is(value, "SQLValueFunction") || w.is(value, "FuncCall") && slices.Contains([]string{"now", "transaction_timestamp", "statement_timestamp"}, string(name))
			if !oneMoment && !w.isConstant(value) {
				advice = append(advice, AdviceRewrite)
			}
		default:
			advice = append(advice, w.constraintAdvice(c)...)
		}
	}
	return advice
}

// isColumn reports whether an expression is a column by itself, or a cast of it.
func (w *walk) isColumn(i int32, name []byte) bool {
	for w.is(i, "TypeCast") {
		i = w.child(i, "arg")
	}
	if !w.is(i, "ColumnRef") {
		return false
	}
	schema, column := w.qualified(i, "fields")
	return len(schema) == 0 && bytes.Equal(column, name)
}

// isConstant reports whether an expression is a constant, a parameter or a cast of one.
func (w *walk) isConstant(i int32) bool {
	for w.is(i, "TypeCast") {
		i = w.child(i, "arg")
	}
	return w.is(i, "A_Const") || w.is(i, "ParamRef")
}

// typeIsWord tells type names that are only words: the values of storage
// options, which the grammar reads as types, and what DROP TYPE or COMMENT ON
// TYPE names without using it.
func (w *walk) typeIsWord(i int32) bool {
	owner := w.owner(i)
	switch {
	case w.is(owner, "DropStmt"), w.is(owner, "CommentStmt"), w.is(owner, "SecLabelStmt"), w.is(owner, "AlterExtensionContentsStmt"):
		return true
	case w.is(owner, "DefElem"):
		return w.isStorageOption(owner)
	}
	return false
}

func (w *walk) isStorageOption(option int32) bool {
	owner := w.owner(option)
	switch {
	case w.is(owner, "CreateStmt"), w.is(owner, "IndexStmt"), w.is(owner, "ViewStmt"), w.is(owner, "IntoClause"),
		w.is(owner, "AlterTSDictionaryStmt"), w.is(owner, "IndexElem"):
		return true
	case w.is(owner, "AlterTypeStmt"):
		return string(w.raw(option, "defname")) == "storage"
	case w.is(owner, "DefineStmt"):
		kind := string(w.raw(owner, "kind"))
		return kind == "OBJECT_COLLATION" || kind == "OBJECT_TSDICTIONARY" || kind == "OBJECT_TSCONFIGURATION"
	case w.is(owner, "List"):
		return w.is(w.owner(owner), "AlterTableCmd")
	}
	return false
}
