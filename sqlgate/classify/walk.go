package classify

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"

	"writegate/commands/fault"
)

// fingerprintDepth is the depth, in JSON objects, from which the parser's
// fingerprint no longer sees the whole tree.
const fingerprintDepth = 96

// A handler judges one node. The walk calls it for every node of its message,
// wherever the node stands; there is no list of places.
type handler func(w *walk, i int32)

// handlers holds the nodes that mean something besides what they hold. Filled
// once before any schema is made; the rest of the grammar is walked without one.
var handlers map[string]handler

func init() {
	handlers = map[string]handler{
		"FuncCall": onFuncCall, "ColumnRef": onColumnRef, "A_Indirection": onIndirection, "A_Expr": onExpr,
		"SubLink": onSubLink, "SortBy": onSortBy, "TypeName": onTypeName, "RangeTableSample": onSample,
		"RangeVar": onRangeVar, "CommonTableExpr": onCTE, "IntoClause": onInto,
		"LockingClause": onLocking, "ParamRef": onParam, "CurrentOfExpr": onCurrentOf,
		"ObjectWithArgs": onObjectWithArgs, "AlterTableCmd": onAlterTableCmd,
	}
	for name := range statements {
		handlers[name] = onStatement
	}
}

// A walk is the state of one classification. It is reused; whatever it gives
// away is copied.
type walk struct {
	t *tables
	tree
	e      []entry // tree.entries
	sql    string
	start  int // of the statement in the text
	reader treeReader
	buf    []byte

	root    int32
	class   string
	queries nameSet
	read    nameSet
	written nameSet
	columns nameSet

	functions nameSet
	risk      nameSet
	flags     nameSet
	wheres    nameSet
	advice    nameSet
	signals   []Signal

	into      bool   // an IntoClause of a SELECT was seen
	run       string // of the root; "" when it has no entry
	rootQuery string
	dml       []int32 // UPDATE, DELETE and MERGE nodes, judged after the walk
	hashes    []uint64
	columnAt  []int32 // every ColumnRef that names a column, in order
	ctes      scopes
}

// facts turns a parsed text into its classification. It is pure: the same
// bytes under the same tables give the same answer.
func (t *tables) facts(p parsed, sql string, s *scan) (Classification, *fault.Fault) {
	w := t.walks.Get().(*walk)
	defer w.release()
	w.t, w.json, w.sql, w.class = t, p.JSON, sql, ClassRead
	w.reader.read(t.schema, &w.tree)
	w.e = w.entries
	if f := w.refuse(); f != nil {
		return Classification{}, f
	}
	w.start = s.Start
	w.collectScopes()
	w.visit()
	w.judgeWheres()
	w.textSignals(s)
	c := w.finish(sql, p.Fingerprint)
	c.Start, c.End = w.bounds(s)
	return c, nil
}

// release empties the walk and puts it back. Very large ones are left to the
// collector.
func (w *walk) release() {
	t, entries, stack, buf, columnAt := w.t, w.entries, w.reader.stack, w.buf, w.columnAt
	if cap(entries) > 1<<16 {
		return
	}
	*w = walk{buf: buf[:0], columnAt: columnAt[:0]}
	w.entries, w.reader.stack = entries[:0], stack[:0]
	t.walks.Put(w)
}

// refuse answers what is not exactly one statement of bearable depth.
func (w *walk) refuse() *fault.Fault {
	if w.broken || string(w.raw(0, "version")) != "160001" {
		return fault.New(fault.Internal, "The parser's answer could not be read. Tell the operator the error_id.")
	}
	n := 0
	for range w.items(0, "stmts") {
		n++
	}
	switch {
	case n == 0:
		return fault.New(fault.EmptySQL, "There is no statement in the SQL text. Send exactly one.")
	case n > 1:
		return fault.New(fault.MultiStatementRejected, "The text holds %d statements; send one at a time.", n).With("got", n).With("max", 1)
	case w.depth > maxTreeDepth:
		return fault.New(fault.ParserUnsupportedSyntax, "The statement is nested too deeply. Split it, or write it with fewer levels.").
			With("limit", "tree_depth").With("got", w.depth).With("max", maxTreeDepth)
	}
	return nil
}

// visit calls the handlers in the order of the tree. Entries lie in that order,
// so this needs neither recursion nor a stack.
func (w *walk) visit() {
	w.root = -1
	for stmt := range w.items(0, "stmts") {
		w.root = w.child(stmt, "stmt")
	}
	for i := int32(0); i < int32(len(w.e)); i++ {
		e := &w.e[i]
		switch {
		case e.msg == 0:
			w.onScalar(i)
		case e.msg == listEntry:
			if w.fieldName(i) == "returningList" && e.next > i+1 {
				w.flags.addWord(FlagReturning)
			}
		default:
			w.ctes.advance(i)
			if h := w.t.schema.messages[e.msg].handle; h != nil {
				h(w, i)
			}
		}
	}
}

// flagFields are the fields that raise a flag where they are true.
var flagFields = map[string]string{
	"missing_ok": FlagIfExists, "if_not_exists": FlagIfExists, "skipIfNewValExists": FlagIfExists,
	"replace": FlagOrReplace, "concurrent": FlagConcurrently,
}

// onScalar sees the few scalars that mean the same in every node.
func (w *walk) onScalar(i int32) {
	fd := &w.t.schema.fields[w.e[i].field]
	switch fd.holds {
	case holdsBool:
		if flag := flagFields[fd.name]; flag != "" && !w.is(w.e[i].parent, "AlterTSConfigurationStmt") {
			w.flags.addWord(flag)
		}
	case holdsEnum:
		if fd.name == "behavior" && string(w.json[w.e[i].a:w.e[i].b]) == "DROP_CASCADE" {
			w.cascade(i)
		}
	}
}

func (w *walk) cascade(i int32) {
	w.flags.addWord(FlagCascade)
	w.raise(SignalCascade, "", i)
}

// textSignals adds what the guard saw in the text and what the reader did not know.
func (w *walk) textSignals(s *scan) {
	for _, n := range w.unknown {
		w.class = ClassUnknown
		w.raise(SignalUnknownNode, n.subject, n.at)
	}
	for _, c := range s.Confusable {
		w.risk.addWord(SignalConfusableText)
		w.signals = append(w.signals, Signal{SignalConfusableText, severities[SignalConfusableText], c.Subject, c.At})
	}
}

// finish puts the facts together.
func (w *walk) finish(sql, fingerprint string) Classification {
	c := Classification{ClassificationVersion: Version, Engine: w.t.engine, Fingerprint: fingerprint, Depth: w.depth}
	if w.depth >= fingerprintDepth {
		sum := sha256.Sum256([]byte(sql))
		c.Fingerprint = "x" + hex.EncodeToString(sum[:8])
	}
	c.QueryType = w.rootType()
	c.Class = w.class
	w.cut(&c.QueryTypes, &w.queries)
	w.cut(&c.TablesRead, &w.read)
	w.cut(&c.TablesWritten, &w.written)
	w.cut(&c.ColumnsWritten, &w.columns)
	w.cut(&c.Functions, &w.functions)
	w.cut(&c.Flags, &w.flags)
	w.cut(&c.Where, &w.wheres)
	w.cut(&c.RiskSignals, &w.risk)
	c.SafeRead = c.Class == ClassRead && len(c.RiskSignals) == 0
	c.Run = w.run
	if c.SafeRead {
		c.Run = RunReadFence
	}
	if c.Run == RunAlone {
		w.advice.addWord(AdviceNoTransaction)
	}
	w.cut(&c.Advice, &w.advice)
	c.Signals = slices.Clone(firstSignals(w.signals))
	if c.Signals == nil {
		c.Signals = []Signal{}
	}
	return c
}

// cut moves a set into a field; one that had to be cut raises oversized_facts,
// so risk signals are cut after all sets that can be large.
func (w *walk) cut(to *[]string, s *nameSet) {
	list, cut := s.sorted()
	if cut {
		w.raise(SignalOversizedFacts, "", -1)
	}
	*to = list
}

// bounds gives the statement's bytes as the parser sees them.
func (w *walk) bounds(s *scan) (int, int) {
	for stmt := range w.items(0, "stmts") {
		start, length := max(number(w.raw(stmt, "stmt_location")), 0), number(w.raw(stmt, "stmt_len"))
		if length > 0 {
			return start, start + length
		}
		return start, max(s.End, start)
	}
	return s.Start, s.End
}
