package classify

import (
	"slices"
	"strings"
	"testing"

	pg "github.com/pganalyze/pg_query_go/v5"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// opinion is a second walk, made in another way from another form of the tree:
// recursion over the protobuf messages, with the names of the CTEs in sight
// handed down. Only the tables of names are shared.
type opinion struct {
	b                                 *builtins
	queries, functions, read, written map[string]bool
	into                              bool
	newSchema                         string // of CREATE SCHEMA
}

// notRead lists the places of a relation that are no plain reads: "w" written,
// "" neither.
var notRead = map[string]string{
	"IntoClause.rel": "w", "InsertStmt.relation": "w", "UpdateStmt.relation": "rw", "DeleteStmt.relation": "rw", "MergeStmt.relation": "rw",
	"GrantStmt.objects": "w", "TruncateStmt.relations": "w", "LockStmt.relations": "w", "VacuumRelation.relation": "w", "ClusterStmt.relation": "w",
	"ReindexStmt.relation": "w", "IndexStmt.relation": "w", "AlterTableStmt.relation": "w", "AlterSeqStmt.sequence": "w", "CreateSeqStmt.sequence": "w",
	"CreateStmt.relation": "w", "CreateStmt.inh_relations": "w", "Constraint.pktable": "w", "CreateTrigStmt.relation": "w", "CreateTrigStmt.constrrel": "w",
	"RuleStmt.relation": "w", "ViewStmt.view": "w", "CompositeTypeStmt.typevar": "w", "RefreshMatViewStmt.relation": "w", "RenameStmt.relation": "w",
	"AlterObjectDependsStmt.relation": "w", "AlterObjectSchemaStmt.relation": "w", "AlterOwnerStmt.relation": "w", "CreatePolicyStmt.table": "w",
	"AlterPolicyStmt.table": "w", "PartitionCmd.name": "w", "CreateStatsStmt.relations": "w", "AlterTableCmd.def": "w",
	"ConstraintsSetStmt.constraints": "", "LockingClause.locked_rels": "", "ImportForeignSchemaStmt.table_list": "",
}

// newElements lists the places of a relation that lives in the schema that its
// statement makes.
var newElements = []string{"CreateStmt.relation", "CreateSeqStmt.sequence", "ViewStmt.view", "IndexStmt.relation", "CreateTrigStmt.relation"}

// holdsStatement lists the fields where a SELECT is a statement of its own.
var holdsStatement = []string{
	"RawStmt.stmt", "CommonTableExpr.ctequery", "ExplainStmt.query", "CopyStmt.query", "PrepareStmt.query", "DeclareCursorStmt.query",
	"CreateTableAsStmt.query", "ViewStmt.query", "RuleStmt.actions", "CreateSchemaStmt.schema_elts", "CreateFunctionStmt.sql_body",
}

func (o *opinion) visit(m protoreflect.Message, ctes map[string]bool, place string) {
	name := string(m.Descriptor().Name())
	if name == "Node" {
		if f := m.WhichOneof(m.Descriptor().Oneofs().Get(0)); f != nil {
			o.visit(m.Get(f).Message(), ctes, place)
		}
		return
	}
	o.judge(m, name, ctes, place)
	inner := o.scope(m, ctes)
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		next := name + "." + string(f.Name())
		if name == "List" { // a list of lists is in the place of the list
			next = place
		}
		switch {
		case f.Message() == nil || f.Name() == "with_clause":
		case f.IsList():
			for i := range v.List().Len() {
				o.visit(v.List().Get(i).Message(), inner, next)
			}
		default:
			o.visit(v.Message(), inner, next)
		}
		return true
	})
}

// scope visits the CTEs of a statement in their order and gives the names that
// its other parts see.
func (o *opinion) scope(m protoreflect.Message, ctes map[string]bool) map[string]bool {
	f := m.Descriptor().Fields().ByName("with_clause")
	if f == nil || !m.Has(f) {
		return ctes
	}
	with := m.Get(f).Message().Interface().(*pg.WithClause)
	inner := map[string]bool{}
	for n := range ctes {
		inner[n] = true
	}
	if with.Recursive {
		for _, c := range with.Ctes {
			inner[c.GetCommonTableExpr().Ctename] = true
		}
	}
	for _, c := range with.Ctes {
		seen := map[string]bool{}
		for n := range inner {
			seen[n] = true
		}
		o.visit(c.ProtoReflect(), seen, "WithClause.ctes")
		inner[c.GetCommonTableExpr().Ctename] = true
	}
	return inner
}

func (o *opinion) judge(m protoreflect.Message, name string, ctes map[string]bool, place string) {
	switch n := m.Interface().(type) {
	case *pg.RangeVar:
		o.rangeVar(n, ctes, place)
	case *pg.CreateSchemaStmt:
		o.newSchema = n.Schemaname
	case *pg.InsertStmt:
		if n.OnConflictClause.GetAction() == pg.OnConflictAction_ONCONFLICT_UPDATE {
			o.queries[TypeUpdate] = true
		}
	case *pg.MergeWhenClause:
		if verb, ok := strings.CutPrefix(n.CommandType.String(), "CMD_"); ok && verb != "NOTHING" {
			o.queries[verb] = true
		}
	case *pg.FuncCall:
		if _, name := split(n.Funcname); o.b.functions[name] != nil && !o.taken(n, o.b.functions[name].forms) {
			o.foreignUnless(nil, n.Funcname)
			return
		}
		o.call(n.Funcname)
	case *pg.ObjectWithArgs:
		if args := len(n.Objargs); n.ArgsUnspecified {
			o.call(n.Objname)
		} else {
			o.bound(n.Objname, args)
		}
	case *pg.CreateFunctionStmt:
		o.foreignUnless(nil, n.Funcname)
	case *pg.CreateTrigStmt:
		o.bound(n.Funcname, 0)
	case *pg.CreateEventTrigStmt:
		o.bound(n.Funcname, 0)
	case *pg.CreateConversionStmt:
		o.bound(n.FuncName, 6)
	case *pg.CreateAmStmt:
		o.bound(n.HandlerName, 1)
	case *pg.ColumnRef:
		if last := n.Fields[len(n.Fields)-1].GetString_(); len(n.Fields) > 1 && last != nil {
			o.attribute(last.Sval)
		}
	case *pg.A_Indirection:
		for _, i := range n.Indirection {
			if s := i.GetString_(); s != nil {
				o.attribute(s.Sval)
			}
		}
	case *pg.A_Expr:
		switch {
		case n.Lexpr == nil:
			o.foreignUnless(o.b.prefixes, n.Name)
		case !strings.Contains(n.Kind.String(), "BETWEEN"):
			o.foreignUnless(o.b.operators, n.Name)
		}
	case *pg.SubLink:
		o.foreignUnless(o.b.operators, n.OperName)
	case *pg.SortBy:
		o.foreignUnless(o.b.operators, n.UseOp)
	case *pg.RangeTableSample:
		o.foreignUnless(o.b.sampling, n.Method)
	case *pg.IntoClause:
		if place == "SelectStmt.into_clause" {
			o.queries[TypeCreateTableAs] = true
		}
	}
	if s, ok := statements[name]; ok && place != "AlterDefaultPrivilegesStmt.action" && (name != "SelectStmt" || slices.Contains(holdsStatement, place)) {
		o.queries[s.query] = true
	}
}

func (o *opinion) rangeVar(r *pg.RangeVar, ctes map[string]bool, place string) {
	schema := r.Schemaname
	switch {
	case schema != "":
	case o.newSchema != "" && slices.Contains(newElements, place):
		schema = o.newSchema
	case r.Relpersistence == "t":
		schema = "pg_temp"
	case o.b.relations[r.Relname]:
		schema = "pg_catalog"
	default:
		schema = "public"
	}
	how, special := notRead[place]
	if !special {
		how = "r"
		if r.Schemaname == "" && ctes[r.Relname] {
			return
		}
	}
	if strings.Contains(how, "r") {
		o.read[schema+"."+r.Relname] = true
	}
	if strings.Contains(how, "w") {
		o.written[schema+"."+r.Relname] = true
	}
}

func split(list []*pg.Node) (schema, name string) {
	for _, n := range list {
		schema, name = name, n.GetString_().GetSval()
	}
	return schema, name
}

func (o *opinion) call(list []*pg.Node) {
	schema, name := split(list)
	if name != "" && (schema == "" || schema == "pg_catalog") && o.b.functions[name] != nil {
		o.functions[name] = true
		return
	}
	o.foreignUnless(nil, list)
}

// bound is a function that is named with so many arguments.
func (o *opinion) bound(list []*pg.Node, args int) {
	_, name := split(list)
	if f := o.b.functions[name]; f != nil && slices.ContainsFunc(f.forms, func(f form) bool { return f.most == args && f.kind != castForm }) {
		o.call(list)
		return
	}
	o.foreignUnless(nil, list)
}

// taken knows of forms the number of arguments, their names, and what the kind of a
// function asks for.
func (o *opinion) taken(n *pg.FuncCall, forms []form) bool {
	args := len(n.Args)
	if n.AggWithinGroup {
		args += len(n.AggOrder)
	}
	return slices.ContainsFunc(forms, func(f form) bool {
		for _, a := range n.Args {
			if named := a.GetNamedArgExpr(); named != nil && !slices.Contains(f.names, named.Name) {
				return false
			}
		}
		plain := !n.AggStar && !n.AggDistinct && !n.AggWithinGroup && n.AggFilter == nil && n.AggOrder == nil && n.Over == nil
		switch f.kind {
		case hypotheticalForm:
			return n.AggWithinGroup
		case orderedForm:
			if !n.AggWithinGroup {
				return false
			}
		case aggregateForm:
			if n.AggWithinGroup || n.AggStar != (args == 0) {
				return false
			}
		case windowForm:
			if n.Over == nil {
				return false
			}
		default:
			if !plain {
				return false
			}
		}
		return args >= f.least && (args <= f.most || f.variadic)
	})
}

func (o *opinion) attribute(name string) {
	if o.b.attributes[name] != nil {
		o.functions[name] = true
	}
}

func (o *opinion) foreignUnless(known map[string]bool, list []*pg.Node) {
	schema, name := split(list)
	if name == "" || (schema == "" || schema == "pg_catalog") && known[name] {
		return
	}
	if schema == "" {
		schema = "public"
	}
	o.functions[schema+"."+name] = true
}

// sampleTexts are all statements the tests of this package write down.
func sampleTexts(t testing.TB) []string {
	var all []string
	for _, a := range attacks(t) {
		all = append(all, a.SQL)
	}
	for _, line := range corpusLines(t, "classification_vectors.tsv", 1) {
		sql, _, _ := strings.Cut(line, "\t")
		all = append(all, sql)
	}
	for _, row := range statementRows {
		all = append(all, row[0])
	}
	for _, line := range traffic(t) {
		all = append(all, line.sql)
	}
	all = append(all, neverSafe(t)...)
	all = append(all, grammarTexts(t)...)
	all = append(all, `SELECT XMLELEMENT(NAME a, XMLATTRIBUTES (1 AS b), XMLFOREST (2 AS c)), XMLSERIALIZE(CONTENT '<a/>'::xml AS text), '<a/>'::xml IS DOCUMENT FROM t`)
	return slices.Concat(all, ordinaryReads, readsOf16)
}

func TestASecondWalkOverTheProtobufTreeAgrees(t *testing.T) {
	tb := newTestTables(t, Config{})
	compared := 0
	for _, sql := range sampleTexts(t) {
		c, f := classifyText(tb, sql)
		if f != nil {
			continue
		}
		parsed, err := pg.Parse(sql)
		require.NoError(t, err)
		o := opinion{b: tb.builtins, queries: map[string]bool{}, functions: map[string]bool{}, read: map[string]bool{}, written: map[string]bool{}}
		o.visit(parsed.Stmts[0].ProtoReflect(), nil, "")
		requireAgreement(t, &o, &c, sql)
		compared++
	}
	require.Greater(t, compared, 900)
}

// requireAgreement compares what the second walk knows. Kinds whose type hangs
// on their fields, names that stand in lists, and types are the first's alone.
func requireAgreement(t *testing.T, o *opinion, c *Classification, sql string) {
	t.Helper()
	for q := range o.queries {
		if !slices.Contains([]string{TypeUnknown, TypeCopyTo, TypeGrant, TypeAlter, TypeSet, TypeVacuum}, q) {
			require.Contains(t, c.QueryTypes, q, sql)
		}
	}
	for f := range o.functions {
		known := o.b.functions[f]
		if known != nil && slices.ContainsFunc(known.forms, func(f form) bool { return f.kind == aggregateForm || f.kind == windowForm }) && slices.Contains(c.Functions, "public."+f) {
			continue // where an aggregate may stand the first walk alone knows
		}
		require.Contains(t, c.Functions, f, sql)
	}
	for r := range o.read {
		require.Contains(t, append(c.TablesRead, c.TablesWritten...), r, sql)
	}
	for w := range o.written {
		require.Contains(t, c.TablesWritten, w, sql)
	}
	if c.Class != ClassRead {
		return
	}
	require.Len(t, c.QueryTypes, len(o.queries), sql)
	require.Len(t, c.TablesRead, len(o.read), sql)
	require.Len(t, c.Functions, len(o.functions), sql)
}
