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
		"LockingClause": onLocking, "CollateClause": onCollate, "ParamRef": onParam, "CurrentOfExpr": onCurrentOf,
		"RangeSubselect": onRangeItem, "RangeFunction": onRangeItem, "RangeTableFunc": onXMLTable, "XmlSerialize": onXML, "XmlExpr": onXML, "JoinExpr": onRangeItem,
		"ObjectWithArgs": onObjectWithArgs, "AlterTableCmd": onAlterTableCmd, "Constraint": onConstraint,
		"IndexElem": onIndexElem, "PartitionElem": onIndexElem,
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
	tableOf []int // how much of each of columns is the table, with its dot

	functions nameSet
	risk      nameSet
	flags     nameSet
	wheres    nameSet
	advice    nameSet
	signals   []Signal

	into       bool // an IntoClause of a SELECT was seen
	userTypes  bool // a type that is not built in is named
	plain      bool // such types are taken for ones without code of the users'
	types      nameSet
	extended   bool   // a fact holds what LockedVersion does not know
	newSchema  []byte // that CREATE SCHEMA makes, whose elements live in it
	run        string // of the root; "" when it has no entry
	rootQuery  string
	steps      int     // taken so far, from entry to entry
	dml        []int32 // UPDATE, DELETE, MERGE and DO UPDATE, judged after the walk
	reached    int32   // the statement whose condition is judged
	selfJoin   bool    // what is read of the target's relation is the target's row
	truths     map[int32]truth
	reductions map[int32]reduced
	columnAt   []int32 // every ColumnRef that names a column, in order
	starAt     []int32 // every ColumnRef that is a star alone

	dotted     []dotted // judged after the walk, with the next two
	selections []int32  // every A_Indirection with a name in it
	defines    bool     // the text or the server gives columns to something in FROM
	relabels   bool     // the text gives columns of a relation other names
	rows       map[int32]*row
	scopes     map[scope]*seen
	calledAt   []int32 // the ColumnRefs that are calls
	unfenced   bool    // what only a read may do without, is a call: (o.col).f where col may be no row
	lax        bool    // which would have made a difference
	beyond     bool    // calls and types are to be expected of which the text does not tell
	byText     bool    // which would have made a difference to where
	params     []int32 // every ParamRef
	keyParams  []KeyParam
	attributes []string
	behind     []string // of brackets

	catalogReads []catalogRead // judged after the walk
	ctes         scopes
}

// facts turns a parsed text into its classification. It is pure: the same
// bytes under the same tables give the same answer.
//
// Two judgements need the end of the walk, and it is made again for them. What is a column
// in a read, which runs READ ONLY and is rolled back, is a call in everything else. And where
// a message or the database tells of more calls, WithCalls needs what the statement is then.
//
// A third is made where types are named that are not built in, as if none of them ran code.
func (t *tables) facts(p parsed, sql string, s *scan) (Classification, *fault.Fault) {
	steps := 0 // of all together: the text is one
	judge := func(plain bool) (Classification, *fault.Fault) {
		once := func(unfenced, beyond bool) (c Classification, lax, byText bool, f *fault.Fault) {
			w := t.walks.Get().(*walk)
			defer w.release()
			w.unfenced, w.beyond, w.plain, w.steps = unfenced, beyond, plain, steps
			c, f = w.facts(t, p, sql, s)
			steps = w.steps
			return c, w.lax, w.byText, f
		}
		c, lax, byText, f := once(false, false)
		if f == nil && lax && !c.SafeRead {
			c, lax, byText, f = once(true, false)
		}
		if f == nil && (lax || byText) {
			var more Classification
			if more, _, _, f = once(true, true); f == nil {
				c.Beyond = &more
			}
		}
		return c, f
	}
	c, f := judge(false)
	if f != nil || len(c.Types) == 0 || len(c.Types) > maxFacts {
		return c, f
	}
	if plain, f := judge(true); f == nil { // else it is too much for another walk, and stays as it is
		c.Plain = plain.ifPlain()
	}
	return c, nil
}

func (w *walk) facts(t *tables, p parsed, sql string, s *scan) (Classification, *fault.Fault) {
	w.t, w.json, w.sql, w.class = t, p.JSON, sql, ClassRead
	w.reader.read(t.schema, &w.tree)
	w.e = w.entries
	if f := w.refuse(); f != nil {
		return Classification{}, f
	}
	w.start = s.Start
	w.collectScopes()
	if f := w.refuseLevels(); f != nil {
		return Classification{}, f
	}
	if f := w.refuseCopies(); f != nil {
		return Classification{}, f
	}
	w.visit()
	clear(w.scopes)
	w.unfenced = w.unfenced || w.class != ClassRead || len(w.risk.list) > 0 // no read already: a second walk would find no more
	w.judgeAttributes()
	w.judgeWheres()
	w.judgeCatalogReads()
	w.textSignals(s)
	c := w.finish(sql, p.Fingerprint)
	c.Start, c.End = w.bounds(s)
	if c.Params = s.HighestParam; w.is(w.root, "PrepareStmt") || w.is(w.root, "CreateFunctionStmt") {
		c.Params = 0 // they are those of what the statement holds
	}
	c.KeyParams, c.UserTypes = append([]KeyParam(nil), w.keyParams...), w.userTypes
	c.Fields = slices.Compact(slices.Sorted(slices.Values(w.behind)))
	if len(w.types.list) > 0 {
		c.Types = slices.Sorted(slices.Values(w.types.list))
	}
	c.Attributes, c.Derived = slices.Compact(slices.Sorted(slices.Values(w.attributes))), w.defines || w.relabels || len(w.selections) > 0
	c.Session, c.Control = w.session(c.Start, c.End), w.control()
	return c, nil
}

// release empties the walk and puts it back. Very large ones are left to the
// collector.
func (w *walk) release() {
	t := w.t
	if cap(w.entries) > 1<<16 {
		return
	}
	for _, s := range w.sets() {
		s.reset()
	}
	clear(w.scopes)
	clear(w.rows)
	w.forgetTruths()
	*w = walk{
		tree: tree{entries: w.entries[:0]}, reader: treeReader{stack: w.reader.stack[:0]}, buf: w.buf[:0], columnAt: w.columnAt[:0], starAt: w.starAt[:0],
		dotted: w.dotted[:0], selections: w.selections[:0], rows: w.rows, scopes: w.scopes, truths: w.truths, reductions: w.reductions, catalogReads: w.catalogReads[:0],
		queries: w.queries, read: w.read, written: w.written, columns: w.columns, tableOf: w.tableOf[:0], functions: w.functions,
		params: w.params[:0], keyParams: w.keyParams[:0], attributes: w.attributes[:0], behind: w.behind[:0], types: w.types, risk: w.risk, flags: w.flags, wheres: w.wheres, advice: w.advice,
	}
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
	sc := w.t.schema
	for i := int32(0); i < int32(len(w.e)); i++ {
		e := &w.e[i]
		if e.msg == 0 || e.msg == listEntry {
			if fd := &sc.fields[e.field]; fd.flag != "" || fd.behavior || fd.method {
				w.onFlag(i, fd)
			}
			continue
		}
		w.ctes.advance(i)
		m := &sc.messages[e.msg]
		if m.other != nil {
			w.onOther(i, m.other)
		}
		if m.handle != nil {
			m.handle(w, i)
		}
	}
}

// flagFields are the fields that raise a flag where they are there: booleans
// that are true, lists that are not empty.
var flagFields = map[string]string{
	"missing_ok": FlagIfExists, "if_not_exists": FlagIfExists, "skipIfNewValExists": FlagIfExists,
	"replace": FlagOrReplace, "concurrent": FlagConcurrently, "returningList": FlagReturning,
}

// onFlag sees the few scalars and lists that mean the same in every node.
func (w *walk) onFlag(i int32, fd *field) {
	switch {
	case fd.method:
		w.accessMethod(unescape(w.json[w.e[i].a:w.e[i].b]), i)
	case fd.behavior:
		if string(w.json[w.e[i].a:w.e[i].b]) == "DROP_CASCADE" {
			w.cascade(i)
			w.reachesBeyond(i)
		}
	case w.e[i].msg != listEntry || w.e[i].next > i+1:
		w.flags.addWord(fd.flag)
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
	for _, form := range w.t.otherLiterals {
		if at := s.literalAt[form]; at > 0 {
			w.class = ClassUnknown
			w.risk.addWord(SignalUnknownNode)
			w.signals = append(w.signals, Signal{SignalUnknownNode, severities[SignalUnknownNode], literalForms[form], at - 1})
		}
	}
}

// finish puts the facts together.
func (w *walk) finish(sql, fingerprint string) Classification {
	c := Classification{ClassificationVersion: LockedVersion, Engine: w.t.engine, Fingerprint: fingerprint, Depth: w.depth}
	if w.depth >= fingerprintDepth {
		sum := sha256.Sum256([]byte(sql))
		c.Fingerprint = "x" + hex.EncodeToString(sum[:8])
	}
	if w.extended {
		c.ClassificationVersion = Version
	}
	if w.widenColumns() {
		c.ClassificationVersion = Version
	}
	c.QueryType = w.rootType()
	c.Class, c.Run = w.class, w.run
	if c.Run == RunAlone {
		w.advice.addWord(AdviceNoTransaction)
	}
	var all []string
	for _, l := range [...]struct {
		to  *[]string
		set *nameSet
	}{
		{&c.QueryTypes, &w.queries}, {&c.TablesRead, &w.read}, {&c.TablesWritten, &w.written}, {&c.ColumnsWritten, &w.columns},
		{&c.Functions, &w.functions}, {&c.Flags, &w.flags}, {&c.Where, &w.wheres}, {&c.Advice, &w.advice},
		{&c.RiskSignals, &w.risk}, // after all that can be too long
	} {
		if all == nil {
			all = make([]string, 0, w.names())
		}
		var cut bool
		if *l.to, cut = l.set.moveTo(&all); cut {
			w.raise(SignalOversizedFacts, "", -1)
		}
	}
	if c.namesTemporary() && slices.Contains(c.Where, WhereKeyEquality) { // the keys there are the client's to choose
		c.Where, c.ClassificationVersion = unkeyed(c.Where), Version
	}
	if c.SafeRead = c.Class == ClassRead && len(c.RiskSignals) == 0; c.SafeRead {
		c.Run = RunReadFence
	}
	c.Signals = slices.Clone(firstSignals(w.signals))
	if c.Signals == nil {
		c.Signals = []Signal{}
	}
	return c
}

// names counts the names of all sets, and one signal more.
func (w *walk) names() int {
	n := 1
	for _, s := range w.sets() {
		n += min(len(s.list), maxFacts)
	}
	return n
}

func (w *walk) sets() [10]*nameSet {
	return [...]*nameSet{&w.queries, &w.read, &w.written, &w.columns, &w.functions, &w.types, &w.flags, &w.wheres, &w.advice, &w.risk}
}

// bounds gives the statement's bytes as the parser sees them.
func (w *walk) bounds(s *scan) (int, int) {
	for stmt := range w.items(0, "stmts") {
		start, length := number(w.raw(stmt, "stmt_location")), number(w.raw(stmt, "stmt_len"))
		if length > 0 {
			return start, start + length
		}
		return start, max(s.End, start)
	}
	return s.Start, s.End
}
