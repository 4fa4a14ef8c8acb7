package classify

import "slices"

// Some statements reach tables that they do not name: all of a schema, all that
// hang on what is dropped with CASCADE, all of the database. The facts name them
// schema.*, or ?.* where not even the schema is known. A rule that restricts
// takes such a name for each table it may stand for; one that allows a list of
// tables does not hold for ?.*, and for schema.* only where it allows the schema.

// anySchema stands for every schema but the server's own.
var anySchema = []byte("?")

var allTables = []byte("*")

// writesAll records all tables of a schema, nil for anySchema.
func (w *walk) writesAll(schema []byte, i int32) {
	if len(schema) == 0 {
		schema = anySchema
	}
	w.extended = true
	w.writes(schema, allTables, i)
	w.column(schema, allTables, nil)
}

func everyTable(w *walk, i int32, _ *statement) { w.writesAll(nil, i) }

// reachesBeyond sees CASCADE: what hangs on an object is changed with it, such
// as a column of its type, a view, a foreign key, the rows of TRUNCATE. That of
// REVOKE is about the same objects and other roles.
func (w *walk) reachesBeyond(behavior int32) {
	if stmt := w.e[behavior].parent; !w.is(stmt, "GrantStmt") && !w.is(stmt, "GrantRoleStmt") {
		w.writesAll(nil, behavior)
	}
}

// grantsAll records what GRANT ON ALL ... IN SCHEMA and ON SCHEMA are about.
func (w *walk) grantsAll(i int32) {
	target, kind := string(w.raw(i, "targtype")), string(w.raw(i, "objtype"))
	for schema := range w.items(i, "objects") {
		switch {
		case target == "ACL_TARGET_ALL_IN_SCHEMA":
			w.allOfKind(i, w.text(schema, "sval"))
		case target == "ACL_TARGET_OBJECT" && kind == "OBJECT_SCHEMA":
			w.writesAll(w.text(schema, "sval"), i)
		}
	}
}

// allOfKind records all objects of a schema of the kind that a GRANT is about.
func (w *walk) allOfKind(grant int32, schema []byte) {
	switch string(w.raw(grant, "objtype")) {
	case "OBJECT_TABLE", "OBJECT_SEQUENCE":
		w.writesAll(schema, grant)
	case "OBJECT_FUNCTION", "OBJECT_PROCEDURE", "OBJECT_ROUTINE":
		w.extended = true
		w.foreign(schema, allTables)
	}
}

// defaultPrivileges records the tables that will be made with them.
func defaultPrivileges(w *walk, i int32, _ *statement) {
	action := w.child(i, "action")
	schemas := w.child(w.option(i, "options", "schemas"), "arg")
	if schemas < 0 {
		w.allOfKind(action, anySchema)
	}
	for schema := range w.items(schemas, "items") {
		w.allOfKind(action, w.text(schema, "sval"))
	}
}

// publication records tables that it publishes without naming them.
func publication(w *walk, i int32, _ *statement) {
	if w.has(i, "for_all_tables") {
		w.readsAll(anySchema, i)
	}
	for object := range w.items(i, "pubobjects") {
		switch string(w.raw(object, "pubobjtype")) {
		case "PUBLICATIONOBJ_TABLES_IN_SCHEMA":
			w.readsAll(w.text(object, "name"), object)
		case "PUBLICATIONOBJ_TABLES_IN_CUR_SCHEMA":
			w.readsAll([]byte(w.t.searchPath), object)
		}
	}
}

func (w *walk) readsAll(schema []byte, i int32) {
	w.extended = true
	w.reads(schema, allTables, i)
}

// newName records the name that a renamed relation or schema gets.
func (w *walk) newName(i int32) {
	name := w.text(i, "newname")
	switch string(w.raw(i, "renameType")) {
	case "OBJECT_SCHEMA":
		w.writesAll(w.text(i, "subname"), i)
		w.writesAll(name, i)
	case "OBJECT_TABLE", "OBJECT_VIEW", "OBJECT_MATVIEW", "OBJECT_INDEX", "OBJECT_SEQUENCE", "OBJECT_FOREIGN_TABLE":
		schema, old := w.relation(w.child(i, "relation"))
		w.becomes(w.resolve(schema, old), name, i)
	}
}

// moveToSchema records the name that a relation has in its new schema. The
// tables of an extension move with it.
func moveToSchema(w *walk, i int32, _ *statement) {
	if string(w.raw(i, "objectType")) == "OBJECT_EXTENSION" {
		w.writesAll(nil, i)
	}
	if relation := w.child(i, "relation"); relation >= 0 {
		_, name := w.relation(relation)
		w.becomes(w.text(i, "newschema"), name, i)
	}
	w.typeOf(i, "objectType")
	w.foreignObject(i, "objectType")
}

// alterType records the type that is changed as written: what columns of it hold is
// another value then, or checked by other rules, in tables that no text names.
func alterType(w *walk, i int32, _ *statement) {
	if names := w.child(i, "typeName"); names >= 0 {
		w.extended = true
		w.named(names, 0)
	}
}

// typeOf does it for a type that gets another name, schema or owner.
func (w *walk) typeOf(i int32, kind string) {
	switch string(w.raw(i, kind)) {
	case "OBJECT_TYPE", "OBJECT_DOMAIN", "OBJECT_DOMCONSTRAINT":
		if names := w.child(w.child(i, "object"), "items"); names >= 0 {
			w.extended = true
			w.named(names, 0)
		}
	}
}

func (w *walk) becomes(schema, name []byte, i int32) {
	w.extended = true
	w.writes(schema, name, i)
	w.column(schema, name, nil)
}

// sequence records the table of OWNED BY.
func sequence(w *walk, i int32, s *statement) {
	if s.query == TypeAlter && w.option(i, "options", "restart") >= 0 {
		w.raiseMore(SignalSequenceChange, i)
	}
	owner := w.child(w.child(w.option(i, "options", "owned_by"), "arg"), "items")
	if owner >= 0 && w.e[owner+1].next < w.e[owner].next { // more than the one word NONE
		w.extended = true
		w.named(owner, 1)
	}
}

// onConstraint records the sequence that a column's IDENTITY names, and what the lock of a
// foreign key keeps out.
func onConstraint(w *walk, i int32) {
	if string(w.raw(i, "contype")) == "CONSTR_FOREIGN" { // the table that it refers to gets triggers
		w.advice.addWord(AdviceBlocksWrites)
	}
	name := w.child(w.child(w.option(i, "options", "sequence_name"), "arg"), "items")
	if name >= 0 {
		w.extended = true
		w.named(name, 0)
	}
	for pair := range w.items(i, "exclusions") { // an element, and the operator behind WITH
		for part := range w.items(pair, "items") {
			if w.is(part, "List") && !w.namesBuiltinOperator(part, "items") {
				w.extended = true
				w.operator(part, "items")
			}
		}
	}
}

// accessMethod judges the name of one, whose functions read and write all of a table or
// an index.
func (w *walk) accessMethod(name []byte, i int32) {
	if len(name) > 0 && !slices.Contains(accessMethods, string(name)) {
		w.extended = true
		w.callSignal(SignalUnknownFunction, w.foreign(nil, name), i)
	}
}

// accessMethods are the server's own (pg_am of PostgreSQL 15 to 18).
var accessMethods = []string{"heap", "btree", "hash", "gist", "gin", "spgist", "brin"}

// onIndexElem judges an operator class, whose functions run for each row of an index or
// a partition key. ON CONFLICT only looks for an index with it.
func onIndexElem(w *walk, i int32) {
	schema, name := w.qualified(i, "opclass")
	if len(name) == 0 {
		return
	}
	method := []byte(nil)
	for up := w.owner(i); method == nil && up >= 0; up = w.owner(up) {
		switch {
		case w.is(up, "InferClause"):
			return
		case w.is(up, "IndexStmt"):
			method = w.text(up, "accessMethod")
		case w.is(up, "Constraint"):
			method = w.text(up, "access_method")
		case w.is(up, "PartitionSpec"):
			method = []byte("btree")
			if string(w.raw(up, "strategy")) == "PARTITION_STRATEGY_HASH" {
				method = []byte("hash")
			}
		}
	}
	if (len(schema) > 0 && string(schema) != "pg_catalog") || !w.t.builtins.opclasses[string(method)+"."+string(name)] {
		w.extended = true
		w.callSignal(SignalUnknownFunction, w.foreign(schema, name), i)
	}
}

// createSchema keeps the schema's name for its elements. Without a name it is
// called like its owner.
func createSchema(w *walk, i int32, _ *statement) {
	if !w.has(i, "schemaElts") {
		return
	}
	w.extended = true
	w.newSchema = w.text(i, "schemaname")
	if len(w.newSchema) == 0 {
		w.newSchema = w.text(w.child(i, "authrole"), "rolename")
	}
	if len(w.newSchema) == 0 { // CURRENT_USER
		w.newSchema = anySchema
	}
}

// isElement reports whether a relation is what an element of CREATE SCHEMA is
// about: the server puts that into the new schema. All other names it looks up,
// first there and then along the search path.
func (w *walk) isElement(i int32) bool {
	if w.newSchema == nil {
		return false
	}
	switch w.t.schema.messages[w.e[w.owner(i)].msg].name + "." + w.fieldName(i) {
	case "CreateStmt.relation", "CreateSeqStmt.sequence", "ViewStmt.view", "IndexStmt.relation", "CreateTrigStmt.relation":
		return true
	}
	return false
}
