package classify

import (
	"bytes"
	"strings"
)

// A function is what is known about a function's name: the worst of its
// overloads on the worst of its versions.
type function struct {
	name    string
	signals []string
	floor   bool // forbidden: its signals say what it can do to the server
	setting settingUse
	forms   []form // of its calls, on all versions
}

// settingUse marks the functions whose first argument names a setting, or
// gives the row whose columns' types read values, and those whose second one is a jsonpath.
type settingUse uint8

const (
	noSetting settingUse = iota
	readsSetting
	setsSetting
	takesJSONPath
	takesRow
)

// strictSignals and forbiddenSignals say what a verdict raises, by the first
// word of its reason (design/classification.md part 8).
var strictSignals = map[string]string{
	"sequence_write": SignalSequenceChange, "advisory_lock": SignalAdvisoryLock, "sleep_dos": SignalDelayFunction, "xpath": SignalDelayFunction, "xml": SignalDelayFunction, "jsonpath": SignalDelayFunction,
	"notify": SignalSessionChange, "session_state": SignalSessionChange, "snapshot_export": SignalSessionChange,
	"info_exposure": SignalSecretCatalogRead, "type_input_user_code": SignalUnknownFunction,
}

var forbiddenSignals = []struct {
	prefix  string
	signals []string
}{
	{"server_file_", []string{SignalServerFileAccess}},
	{"server_config_file_read", []string{SignalServerFileAccess}},
	{"large_object_write", []string{SignalServerFileAccess}},
	{"exec_", []string{SignalSQLExecutingFunction}},
	{"server_signal", []string{SignalBackendControl}},
	{"wal_or_backup_control", []string{SignalBackendControl}},
	{"replication_", []string{SignalBackendControl}},
	{"statistics_reset", []string{SignalBackendControl}},
	{"index_maintenance_write", []string{SignalBackendControl}},
	{"catalog_", []string{SignalSystemCatalogWrite, SignalBackendControl}},
	{"setting_change", nil}, // by its argument
	{"trigger_function", []string{SignalOpaqueCode}},
	{"event_trigger_only", []string{SignalOpaqueCode}},
	{"language_", []string{SignalOpaqueCode}},
}

// newFunction makes the entry of a built-in from its verdict and reason.
func newFunction(name, verdict, reason string) *function {
	reason, _, _ = strings.Cut(reason, ":")
	f := &function{name: name}
	switch {
	case strings.HasPrefix(name, "jsonb_path_"):
		f.setting = takesJSONPath
	case reason == "setting_read":
		f.setting = readsSetting
	case reason == "setting_change":
		f.setting = setsSetting
	case reason == "row_type" && strings.Contains(name, "_populate_"): // the others have a list of columns with types
		f.setting = takesRow
	}
	switch verdict {
	case "safe":
	case "strict":
		f.signals = []string{SignalVolatileFunction}
		if s := strictSignals[reason]; s != "" {
			f.signals = []string{s}
		}
	default:
		f.floor = true
		f.signals = forbiddenBy(reason)
	}
	return f
}

// forbiddenBy gives the signals of a forbidden built-in. A reason or verdict
// that nobody has mapped is held to be the worst.
func forbiddenBy(reason string) []string {
	for _, f := range forbiddenSignals {
		if strings.HasPrefix(reason, f.prefix) {
			return f.signals
		}
	}
	return []string{SignalUnknownFunction, SignalBackendControl}
}

// newExtensionFunction makes the entry of a contrib function. Where it lives
// is not known from text, so it is an unknown function at best.
func newExtensionFunction(name, verdict, reason string) *function {
	f := &function{name: name, signals: []string{SignalUnknownFunction}}
	switch verdict {
	case "safe":
	case "strict":
		f.signals = append(f.signals, SignalVolatileFunction)
	default:
		f.floor = true
		f.signals = append(f.signals, extensionFloor(reason))
	}
	return f
}

func extensionFloor(reason string) string {
	for _, r := range []struct{ prefix, signal string }{
		{"remote_sql", SignalRemoteAccess}, {"fdw", SignalRemoteAccess}, {"handler", SignalRemoteAccess},
		{"exec_sql_text", SignalSQLExecutingFunction},
		{"server_file", SignalServerFileAccess}, {"raw page", SignalServerFileAccess}, {"raw WAL", SignalServerFileAccess},
	} {
		if strings.HasPrefix(reason, r.prefix) {
			return r.signal
		}
	}
	return SignalBackendControl
}

// onFuncCall judges a call wherever it stands.
func onFuncCall(w *walk, i int32) {
	schema, name, f := w.called(i)
	if f == nil {
		w.callUnknown(schema, name, i)
		return
	}
	w.call(f, i)
	switch f.setting {
	case readsSetting:
		if setting, ok := w.argumentText(i, 0); !ok || w.t.secretSetting(setting) {
			w.raise(SignalSecretCatalogRead, f.name, i)
		}
	case setsSetting:
		w.judgeSettingArgument(f, i)
		w.callSignal(SignalSessionChange, f.name, i)
		value, _ := w.argumentText(i, 1)
		if setting, ok := w.argumentText(i, 0); !ok || !setsFreely(setting, value) {
			w.raise(SignalIdentitySwitch, f.name, i)
		}
	case takesJSONPath:
		place, path := 0, int32(-1)
		for arg := range w.items(i, "args") {
			if place == 1 {
				path = arg
			}
			place++
		}
		if !w.is(path, "TypeCast") || !w.isTypeNamed(w.child(path, "typeName"), "jsonpath") { // onTypeName judges that
			text, ok := w.argumentText(i, 1)
			w.judgeJSONPath(text, ok && w.variablesAreOne(i, text), i)
		}
	case takesRow:
		row := int32(-1)
		for arg := range w.items(i, "args") {
			row = arg
			break
		}
		// Only of a constant does the text name the type, which onTypeName judges. A row of a
		// table has fields of any, and what reads them runs the checks of domains, as record_in does.
		if !w.is(row, "TypeCast") || !w.is(w.child(row, "arg"), "A_Const") {
			w.call(w.t.builtins.functions["record_in"], i)
			w.userTypes = true
		}
	}
}

// builtin finds a function of the server's own by its name; nil means that text
// cannot tell what the name is.
func (t *tables) builtin(schema, name []byte) *function {
	switch string(schema) {
	case "", "pg_catalog":
		return t.builtins.functions[string(name)]
	case "information_schema":
		return t.builtins.standard[string(name)]
	}
	return nil
}

// call records a call of a known function.
func (w *walk) call(f *function, i int32) {
	w.functions.addWord(f.name)
	for _, s := range f.signals {
		w.callSignal(s, f.name, i)
	}
}

// callUnknown records a call of what is not built in: a function of an
// extension may still be known by its bare name to be worse than unknown.
func (w *walk) callUnknown(schema, name []byte, i int32) {
	subject := w.foreign(schema, name)
	w.callSignal(SignalUnknownFunction, subject, i)
	if f := w.t.extensions[string(name)]; f != nil {
		for _, s := range f.signals[1:] {
			w.callSignal(s, subject, i)
		}
	}
}

// foreign records the name of something that acts as a call and is not built in.
func (w *walk) foreign(schema, name []byte) string {
	if len(schema) == 0 {
		schema = []byte(w.t.searchPath)
	}
	w.buf = append(append(append(w.buf[:0], schema...), '.'), name...)
	w.functions.add(w.buf)
	return string(w.buf)
}

// callSignal raises what a call does. Reading secrets leaves the class a read;
// everything else counts as a write.
func (w *walk) callSignal(signal, subject string, i int32) {
	w.raise(signal, subject, i)
	if signal != SignalSecretCatalogRead {
		w.class = stricter(w.class, ClassWrite)
	}
}

// onXMLTable sees a call whose argument is an XPath, as that of xpath.
func onXMLTable(w *walk, i int32) {
	onRangeItem(w, i)
	w.callSignal(SignalDelayFunction, "xmltable", i)
}

// onXML sees what has libxml parse, or write, besides functions: XMLPARSE, XMLELEMENT and the like, IS DOCUMENT,
// XMLSERIALIZE. It does not look everywhere whether it got memory: 2.9.4, which builds of 16 to 18 bring, ends
// the server where it did not.
func onXML(w *walk, i int32) {
	w.callSignal(SignalDelayFunction, "xml", i)
}

// onCollate sees a collation of ICU by its name, as initdb makes them: of an expression, or of a
// column that a call in FROM defines. ICU, as libxml, does not look everywhere whether it got memory.
func onCollate(w *walk, i int32) {
	if _, name := w.qualified(i, "collname"); !w.isNewColumn(w.owner(i)) && (string(name) == "unicode" || bytes.HasSuffix(name, []byte("-x-icu"))) {
		w.callSignal(SignalDelayFunction, string(name), i)
	}
}

// onColumnRef sees the call in a.b where b is a function of one argument. A
// name alone is never a call, nor is a star.
func onColumnRef(w *walk, i int32) {
	n, qualifier, last := 0, int32(-1), int32(-1)
	for f := range w.items(i, "fields") {
		n, qualifier, last = n+1, last, f
	}
	if n > 1 || w.is(last, "String") { // a bare star names no column
		w.columnAt = append(w.columnAt, i)
	} else {
		w.starAt = append(w.starAt, i)
	}
	if n > 1 && w.is(last, "String") {
		w.attribute(w.text(last, "sval"), i)
		w.dotted = append(w.dotted, dotted{i, qualifier, last, n > 2})
	}
}

// onIndirection sees calls in (x).f and x[1].f.
func onIndirection(w *walk, i int32) {
	names := false
	for f := range w.items(i, "indirection") {
		if w.is(f, "String") {
			name := w.text(f, "sval")
			w.attribute(name, i)
			switch string(bytes.TrimPrefix(name, []byte("_"))) { // also the cast to the type of that name, of a column that is no row
			case "xml", "jsonpath":
				w.callSignal(SignalDelayFunction, string(name), i)
			}
			w.behind = append(w.behind, w.attributes[len(w.attributes)-1])
			names = true
		}
	}
	if names {
		w.selections = append(w.selections, i)
	}
}

// attribute judges a column's name that could be a call.
func (w *walk) attribute(name []byte, i int32) {
	w.attributes = append(w.attributes, string(unescape(name)))
	if f := w.t.builtins.attributes[string(name)]; f != nil {
		w.call(f, i)
		if f.setting != noSetting {
			w.raise(SignalSecretCatalogRead, f.name, i) // its argument is no constant
		}
		return
	}
	if f := w.t.extensions[string(name)]; f != nil && f.floor {
		w.callUnknown(nil, name, i)
	}
}

// onOperator judges the name list of an operator held in the field.
func (w *walk) operator(node int32, fieldName string) {
	schema, name := w.qualified(node, fieldName)
	if len(name) == 0 || w.namesBuiltinOperator(node, fieldName) {
		return
	}
	w.callSignal(SignalUnknownFunction, w.foreign(schema, name), node)
}

func (w *walk) namesBuiltinOperator(node int32, fieldName string) bool {
	schema, name := w.qualified(node, fieldName)
	known := w.t.builtins.operators
	if w.is(node, "A_Expr") && w.child(node, "lexpr") < 0 {
		known = w.t.builtins.prefixes
	}
	return (len(schema) == 0 || string(schema) == "pg_catalog") && known[string(name)]
}

// isBetween tells the expressions whose names are no operators.
func (w *walk) isBetween(expr int32) bool {
	return bytes.Contains(w.raw(expr, "kind"), []byte("BETWEEN"))
}

func onSubLink(w *walk, i int32) { w.operator(i, "operName") }

func onSortBy(w *walk, i int32) { w.operator(i, "useOp") }

func (w *walk) isBuiltinType(i int32) bool {
	schema, name := w.qualified(i, "names")
	return (len(schema) == 0 || string(schema) == "pg_catalog") && w.t.builtins.types[string(name)] && !w.has(i, "pct_type")
}

// isTypeNamed tells a type of the server's own by its name, arrays of it included.
func (w *walk) isTypeNamed(i int32, want string) bool {
	schema, name := w.qualified(i, "names")
	name = bytes.TrimPrefix(name, []byte("_")) // as pg_type has an array
	return (len(schema) == 0 || string(schema) == "pg_catalog") && string(name) == want
}

// isArray tells an array of a type of the server's own: by its brackets, or by its own name.
func (w *walk) isArray(i int32) bool {
	_, name := w.qualified(i, "names")
	return w.has(i, "arrayBounds") || bytes.HasPrefix(name, []byte("_"))
}

// onTypeName judges a type: one that is not built in runs its own code.
func onTypeName(w *walk, i int32) {
	if w.typeIsWord(i) {
		return
	}
	if w.isTypeNamed(i, "jsonpath") && !w.isNewColumn(w.owner(i)) {
		cast := w.owner(i)
		path, constant := w.constantText(w.child(cast, "arg"))
		w.judgeJSONPath(path, constant && w.is(cast, "TypeCast") && !w.isArray(i) && w.takesPath(cast) && w.variablesAreOne(w.owner(cast), path), i)
	}
	if w.isTypeNamed(i, "xml") && !w.isNewColumn(w.owner(i)) {
		w.callSignal(SignalDelayFunction, "xml", i)
	}
	schema, name := w.qualified(i, "names")
	isSerial := len(schema) == 0 && serials[string(name)] && w.isNewColumn(w.owner(i))
	if !w.isBuiltinType(i) && (!isSerial || w.has(i, "pct_type")) {
		w.userTypes = true
		subject := w.foreign(schema, name)
		if !w.has(i, "pct_type") {
			w.types.add([]byte(subject))
			if w.plain {
				return
			}
		}
		w.callSignal(SignalUnknownFunction, subject, i)
	}
}

// serials are no types: where a table's column is made they stand for an integer
// and a sequence, quoted too, and anywhere else for a type of that name.
var serials = map[string]bool{"serial": true, "serial2": true, "serial4": true, "serial8": true, "smallserial": true, "bigserial": true}

// isNewColumn reports whether a node is the definition of a column that CREATE
// TABLE or ALTER TABLE makes. The columns of a composite type are none.
func (w *walk) isNewColumn(i int32) bool {
	if !w.is(i, "ColumnDef") {
		return false
	}
	switch owner := w.owner(i); {
	case w.is(owner, "CreateStmt"):
		return true
	case w.is(owner, "AlterTableCmd"):
		return string(w.raw(owner, "subtype")) == "AT_AddColumn" && string(w.raw(w.owner(owner), "objtype")) != "OBJECT_TYPE"
	}
	return false
}

// onSample judges TABLESAMPLE's method.
func onSample(w *walk, i int32) {
	schema, name := w.qualified(i, "method")
	if len(schema) != 0 && string(schema) != "pg_catalog" || !w.t.builtins.sampling[string(name)] {
		w.callSignal(SignalUnknownFunction, w.foreign(schema, name), i)
	}
}

// qualified reads a list of names as schema and name. A database in front is
// dropped: the server refuses any but its own.
func (w *walk) qualified(node int32, fieldName string) (schema, name []byte) {
	for i := range w.items(node, fieldName) {
		schema, name = name, w.text(i, "sval")
	}
	return schema, name
}

// BuiltinCall is a call of a function of PostgreSQL's own, of which only the name and the
// number of arguments is known, as text that can be classified.
func BuiltinCall(name string, args int) string {
	return `pg_catalog."` + strings.ReplaceAll(name, `"`, `""`) + `"(` + strings.TrimSuffix(strings.Repeat("NULL, ", args), ", ") + ")"
}
