package classify

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	pg "github.com/pganalyze/pg_query_go/v5"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/reflect/protoreflect"

	"writegate/commands/fault"
)

// An oracle tells from the protobuf tree alone why a statement is no safe read.
// It knows less than the classifier and shares nothing with it: not the form of
// the tree, not the walk, not the tables, but the reviewed lists themselves.
type oracle struct {
	safe    map[string]bool // functions by name
	callers map[string]bool // names that are calls as columns
	hidden  map[string]bool // names that a CTE may hide, for one statement
}

func newOracle(t testing.TB) *oracle {
	o := &oracle{safe: map[string]bool{}, callers: map[string]bool{}}
	for _, line := range corpusLines(t, "pg_functions.tsv", 1) {
		r := strings.Split(line, "\t")
		o.safe[r[1]] = r[2] == "safe" && strings.Contains(r[5], "16")
	}
	for _, name := range corpusLines(t, "pg_attr_callable_functions.txt", 0) {
		o.callers[name] = true
	}
	return o
}

// harmless are the statements that a safe read may hold.
var harmless = []string{"RawStmt", "SelectStmt", "ExplainStmt", "VariableShowStmt"}

// why gives the first reason found, or "".
func (o *oracle) why(m protoreflect.Message) string {
	name := string(m.Descriptor().Name())
	if strings.HasSuffix(name, "Stmt") && !slices.Contains(harmless, name) {
		return name
	}
	if reason := o.judge(m); reason != "" {
		return reason
	}
	reason := ""
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.Message() == nil:
		case f.IsList():
			for i := 0; i < v.List().Len() && reason == ""; i++ {
				reason = o.why(v.List().Get(i).Message())
			}
		default:
			reason = o.why(v.Message())
		}
		return reason == ""
	})
	return reason
}

func (o *oracle) judge(m protoreflect.Message) string {
	switch n := m.Interface().(type) {
	case *pg.IntoClause, *pg.LockingClause, *pg.CurrentOfExpr:
		return string(m.Descriptor().Name())
	case *pg.FuncCall:
		schema, name := split(n.Funcname)
		if (schema != "" && schema != "pg_catalog" || !o.safe[name]) && (schema != "information_schema" || !strings.HasPrefix(name, "_pg_")) {
			return "call of " + schema + "." + name
		}
	case *pg.ColumnRef:
		if last := n.Fields[len(n.Fields)-1].GetString_(); len(n.Fields) > 1 && last != nil && o.callers[last.Sval] {
			return "call as a column of " + last.Sval
		}
	case *pg.A_Indirection:
		for _, i := range n.Indirection {
			if o.callers[i.GetString_().GetSval()] {
				return "call as a column of " + i.GetString_().GetSval()
			}
		}
	case *pg.A_Expr:
		if schema, _ := split(n.Name); schema != "" && schema != "pg_catalog" {
			return "operator of " + schema
		}
	case *pg.TypeName:
		if schema, _ := split(n.Names); schema != "" && schema != "pg_catalog" {
			return "type of " + schema
		}
	case *pg.RangeVar:
		if slices.Contains([]string{"pg_authid", "pg_shadow", "pg_stat_activity", "pg_settings", "pg_largeobject"}, n.Relname) && (n.Schemaname == "pg_catalog" || n.Schemaname == "" && !o.hidden[n.Relname]) {
			return "secret " + n.Relname
		}
	case *pg.ExplainStmt:
		for _, option := range n.Options {
			if option.GetDefElem().Defname == "analyze" && option.GetDefElem().Arg == nil {
				return "EXPLAIN ANALYZE"
			}
		}
	}
	return ""
}

// requireJustified holds a safe read against the oracle.
func (o *oracle) requireJustified(t *testing.T, sql string, c *Classification) {
	t.Helper()
	parsed, err := pg.Parse(sql)
	require.NoError(t, err, sql)
	require.Len(t, parsed.Stmts, 1, sql)
	if c.SafeRead {
		o.hidden = cteNames(parsed.ProtoReflect(), map[string]bool{})
		require.Empty(t, o.why(parsed.ProtoReflect()), "%q is no safe read", sql)
	}
}

// cteNames collects the names of all CTEs, which may hide secret relations.
func cteNames(m protoreflect.Message, names map[string]bool) map[string]bool {
	if cte, ok := m.Interface().(*pg.CommonTableExpr); ok {
		names[cte.Ctename] = true
	}
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.Message() == nil:
		case f.IsList():
			for i := range v.List().Len() {
				cteNames(v.List().Get(i).Message(), names)
			}
		default:
			cteNames(v.Message(), names)
		}
		return true
	})
	return names
}

func TestTheOracleFindsNoReasonAgainstASafeRead(t *testing.T) {
	tb, o := newTestTables(t, Config{}), newOracle(t)
	convicted := 0
	for _, sql := range sampleTexts(t) {
		c, f := classifyText(tb, sql)
		if f != nil {
			continue
		}
		o.requireJustified(t, sql, &c)
		parsed, err := pg.Parse(sql)
		require.NoError(t, err)
		if o.why(parsed.ProtoReflect()) != "" {
			require.False(t, c.SafeRead, sql)
			convicted++
		}
	}
	require.Greater(t, convicted, 250, "an oracle that finds nothing proves nothing")
}

// nodesOf counts the messages of a protobuf tree by name, and its strings.
func nodesOf(m protoreflect.Message, nodes, texts map[string]int) {
	if name := string(m.Descriptor().Name()); name != "Node" {
		nodes[name]++
	}
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.Kind() == protoreflect.StringKind:
			texts[v.String()]++
		case f.Message() == nil:
		case f.IsList():
			for i := range v.List().Len() {
				nodesOf(v.List().Get(i).Message(), nodes, texts)
			}
		default:
			nodesOf(v.Message(), nodes, texts)
		}
		return true
	})
}

// Every node and every text of the protobuf tree is in the tree that we read,
// and nothing else is.
func TestBothTreesHoldTheSameNodes(t *testing.T) {
	tb := newTestTables(t, Config{})
	seen := map[string]bool{}
	for _, sql := range goodTexts(t, tb) {
		parsed, err := pg.Parse(sql)
		require.NoError(t, err)
		nodes, texts := map[string]int{}, map[string]int{}
		nodesOf(parsed.ProtoReflect(), nodes, texts)

		p, f := parseTree(sql)
		require.Nil(t, f)
		ours, ourTexts := map[string]int{}, map[string]int{}
		own := tree{json: p.JSON}
		new(treeReader).read(tb.schema, &own)
		for i := range own.entries {
			e := &own.entries[i]
			fd := &tb.schema.fields[e.field]
			switch {
			case e.msg == listEntry:
			case e.msg != 0:
				ours[tb.schema.messages[e.msg].name]++
			case fd.holds == holdsText && !fd.list:
				ourTexts[string(unescape(own.json[e.a:e.b]))]++
			}
		}
		p.release()
		delete(ourTexts, "") // which the protobuf form leaves out
		require.Equal(t, nodes, ours, sql)
		require.Equal(t, texts, ourTexts, sql)
		for name := range nodes {
			seen[name] = true
		}
	}
	require.Greater(t, len(seen), 195, "kinds of nodes compared")
}

// FuzzClassify holds for every text: no panic, no fault of our own, the same
// answer twice, facts that fit together, and no safe read that the protobuf
// tree has a reason against.
func FuzzClassify(f *testing.F) {
	for _, sql := range sampleTexts(f) {
		f.Add(sql)
	}
	c, err := New(Config{ServerMajor: 16})
	require.NoError(f, err)
	f.Cleanup(c.Close)
	o := newOracle(f)
	f.Fuzz(func(t *testing.T, sql string) {
		found, err := c.Classify(context.Background(), sql)
		again, errAgain := c.Classify(context.Background(), sql)
		require.Equal(t, err == nil, errAgain == nil)
		if err != nil {
			var refusal *fault.Fault
			require.True(t, errors.As(err, &refusal), "%v", err)
			require.NotEqual(t, fault.Internal, refusal.Code, "%v", err)
			return
		}
		require.Equal(t, found, again)
		requireSound(t, &found)
		if len(sql) <= inProcessBytes && found.Depth < inProcessDepth {
			o.requireJustified(t, sql, &found)
		}
	})
}
