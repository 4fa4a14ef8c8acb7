package catalog

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"writegate/sqlgate/classify"
)

// Found is what stands behind the names of a statement.
type Found struct {
	classify.Beside
	Lines []string // the same for people
}

// Resolve finds what stands behind the names in a classification, nil where that is nothing,
// and by which definitions. operators are all that the text writes; nil is none. defaults
// says that an UPDATE of it may name DEFAULT. keys are the columns that count as keys. plain
// are the types in it that were taken for plain ones.
func (s *Snapshot) Resolve(c *classify.Classification, operators []string, defaults bool, keys, plain []string) (*Found, *Definitions) {
	w := resolution{s: s, plain: slices.Clone(plain), columns: c.ColumnsWritten, defaults: defaults, conflicts: slices.Contains(c.Flags, classify.FlagOnConflict)}
	for _, name := range s.always {
		w.call(name, name, "works with types of PostgreSQL's own, as a cast or in an operator class")
	}
	byKey := slices.Contains(c.Where, classify.WhereKeyEquality)
	unkeyed := func(r *relation) {
		if byKey && !r.keyed(keys) {
			w.found.Unkeyed = true
			w.line("%s has a column that counts as a key and is not unique", r.Relation)
		}
	}
	for _, name := range c.TablesRead {
		r := s.relations[name]
		if r == nil {
			continue
		}
		if !r.plain {
			w.visit(r, Read)
		}
		if w.conflicts { // the rows of an upsert may be those that a key of its source finds
			unkeyed(r)
		}
	}
	on := events(c)
	for _, name := range c.TablesWritten {
		r := s.relations[name]
		if r == nil {
			continue
		}
		if !r.plain {
			w.visit(r, on)
		}
		unkeyed(r)
	}
	if len(s.calls) > 0 {
		for _, name := range c.Functions {
			if call, shadows := s.calls[name]; shadows {
				w.call(call, call, "bears the name of a built-in function")
			}
		}
	}
	for _, name := range operators {
		if name == "!=" {
			name = "<>"
		}
		if o, shadows := s.operators[name]; shadows {
			w.call(o, o, "bears the name of a built-in operator")
		}
	}
	return w.result(c), w.definitions(c)
}

// Operators tells whether Resolve needs the operators of a text.
func (s *Snapshot) Operators() bool { return len(s.operators) > 0 }

// events are those of the tables that a statement writes.
func events(c *classify.Classification) (on int) {
	for _, queryType := range c.QueryTypes {
		on |= eventOf[queryType]
	}
	if on == 0 && (c.Class == classify.ClassDDL || c.Class == classify.ClassMaintenance) && c.QueryType != classify.TypeDrop {
		on = rewritten
	}
	if on&Truncate != 0 && slices.Contains(c.Flags, classify.FlagCascade) {
		on |= emptied
	}
	return on
}

var eventOf = map[string]int{classify.TypeInsert: Insert, classify.TypeCopyFrom: Insert, classify.TypeDelete: Delete, classify.TypeUpdate: Update,
	classify.TypeTruncate: Truncate, classify.TypeRefresh: Refresh}

// Two more events: TRUNCATE with CASCADE; and what is done to a table as a whole, such as ALTER
// or REINDEX, which may ask its checks, indexes and partition keys of all rows, and fires nothing.
const (
	emptied   = 1 << 16
	rewritten = 1 << 17
)

// keyed tells whether a column of the relation that counts as a key is one: unique by
// itself, also among the rows of tables below.
func (r *relation) keyed(keys []string) bool {
	if r.Kind != "r" && r.Kind != "p" || slices.ContainsFunc(r.children, func(c *relation) bool { return !c.Part }) {
		return false
	}
	for _, k := range keys {
		if slices.Contains(r.Columns, k) && !slices.Contains(r.Keys, k) {
			return false
		}
	}
	return true
}

type visit struct {
	r    *relation
	on   int
	deep bool // it is not named
}

// A resolution walks what stands behind relations. Each is visited once for each event as it is
// named, and once as others lead to it, so a circle ends.
type resolution struct {
	s        *Snapshot
	columns  []string // written by the statement itself
	defaults bool

	plain     []string // types
	conflicts bool     // it has an ON CONFLICT
	seen      map[visit]bool
	reached   []*relation // that others lead to
	found     Found
	depth     int
	below     bool // what is visited next is a partition of what was
}

// line keeps a sentence for people.
func (w *resolution) line(format string, args ...any) {
	w.found.Lines = append(w.found.Lines, fmt.Sprintf(format, args...))
}

// call keeps that a function runs of which the text does not tell.
func (w *resolution) call(name, subject, why string) {
	w.calls(name, []string{classify.SignalUnknownFunction}, subject, why)
}

func (w *resolution) calls(name string, signals []string, subject, why string) {
	w.found.Functions = append(w.found.Functions, name)
	for _, signal := range signals {
		w.found.Signals = append(w.found.Signals, classify.Signal{Signal: signal, Subject: name})
	}
	w.line("%s %s", subject, why)
}

// code is a call of what a relation is made of.
func (w *resolution) code(r *relation, c *Code) {
	why := "calls " + c.Call + " (its " + c.By + ")"
	name := strings.TrimPrefix(c.Call, ofServer)
	if judged := w.s.builtins[classify.BuiltinCall(name, c.Args)]; name != c.Call && judged != nil {
		w.calls(name, judged.RiskSignals, r.Relation, why)
		return
	}
	w.call(c.Call, r.Relation, why)
}

func (w *resolution) visit(r *relation, on int) {
	fresh, below := 0, w.below
	w.below = false
	for bit := 1; bit <= on; bit <<= 1 {
		if v := (visit{r, bit, w.depth > 0}); on&bit != 0 && !w.seen[v] {
			if w.seen == nil {
				w.seen = map[visit]bool{}
			}
			w.seen[v], fresh = true, fresh|bit
		}
	}
	if fresh == 0 {
		return
	}
	if r.Told != "" {
		w.found.Texts = append(w.found.Texts, r.Relation+" "+r.Told)
	}
	w.depth++
	defer func() { w.depth-- }()
	if fresh&Update != 0 && len(r.Split) > 0 && (w.depth > 1 || w.writes(r, r.Split)) { // rows may move, each deleted and inserted
		fresh |= Insert | Delete
	}
	if !below && fresh&(Insert|Update) != 0 {
		w.bounds(r, 0)
	}
	filled := fresh
	if fresh&Update != 0 && w.defaults {
		filled |= Insert
	}
	for _, code := range r.Code {
		if code.On&filled != 0 || fresh&rewritten != 0 && code.On&(Insert|Update) != 0 {
			w.code(r, &code)
		}
	}
	if fresh&(Read|Insert|Delete|Update) != 0 {
		for _, name := range r.Reads {
			w.line("%s has a policy that reads %s", r.Relation, name)
			w.read(name)
		}
	}
	instead := 0
	for _, t := range r.Triggers {
		if t.On&fresh == 0 || t.Above && below {
			continue
		}
		if t.Instead {
			instead |= t.On
		}
		if t.Instead && (w.conflicts || w.depth > 1) { // the UPDATE of an ON CONFLICT goes by it, as may that of a rule
			instead &^= Update
		}
		if t.On&fresh == Update && w.depth == 1 && len(t.Of) > 0 && !w.writes(r, t.Of) {
			continue
		}
		w.call(t.Call, r.Relation, "fires "+t.Call)
	}
	for _, rule := range r.Rules {
		if rule.On&fresh == 0 {
			continue
		}
		if rule.Instead {
			instead |= rule.On
		}
		w.line("%s has a rule that may write %s", r.Relation, cmp.Or(strings.Join(rule.Names, ", "), "nothing"))
		for _, name := range rule.Names {
			w.write(name, Insert|Update|Delete, true)
		}
	}
	switch {
	case r.Kind == "v":
		w.through(r, fresh&^(instead|rewritten))
	case fresh&Refresh != 0:
		w.through(r, Read)
	}
	for _, child := range r.children {
		if fresh == Refresh {
			break
		}
		if !child.Part {
			w.line("%s has the rows of %s too", r.Relation, child.Relation)
			if fresh&Read != 0 {
				w.found.TablesRead = append(w.found.TablesRead, child.Relation)
			}
			if fresh&(Update|Delete|Truncate) != 0 {
				w.found.TablesWritten = append(w.found.TablesWritten, child.Relation)
			}
			if fresh&Update != 0 {
				w.found.ColumnsWritten = append(w.found.ColumnsWritten, child.Relation+".*")
			}
		}
		if w.below = child.Part; child.Part {
			w.visit(child, fresh)
		} else {
			w.visit(child, fresh&^Insert)
		}
	}
	w.referred(r, fresh)
}

// bounds adds what the keys call that say whether a row may be in a partition.
func (w *resolution) bounds(r *relation, depth int) {
	for _, above := range r.parents {
		for _, code := range above.Code {
			if code.By == "partition key" {
				w.code(above, &code)
			}
		}
		if depth < deepestTree {
			w.bounds(above, depth+1)
		}
	}
}

// deepestTree bounds how deep partitions lie in partitions: two relations of one name may
// seem to lie in each other.
const deepestTree = 32

// writes tells whether the statement writes one of these columns of a relation. A generated
// one is written with any.
func (w *resolution) writes(r *relation, columns []string) bool {
	all := slices.Contains(columns, "*") || slices.ContainsFunc(r.Derived, func(column string) bool { return slices.Contains(columns, column) })
	return slices.ContainsFunc(w.columns, func(fact string) bool {
		column, of := strings.CutPrefix(fact, r.Relation+".")
		return of && (all || column == "*" || slices.Contains(columns, column))
	})
}

// through adds what a view is made of.
func (w *resolution) through(r *relation, on int) {
	if on == 0 {
		return
	}
	if r.view == nil {
		w.call(r.Relation, r.Relation, "is a view that could not be judged")
		w.found.TablesRead = append(w.found.TablesRead, "?.*")
		return
	}
	w.found.Classes, w.found.Texts, w.plain = append(w.found.Classes, r.view.Class), append(w.found.Texts, r.View), append(w.plain, r.types...)
	for _, name := range r.view.RiskSignals { // Signals has the first of them alone
		if name != classify.SignalConfusableText && !slices.ContainsFunc(r.view.Signals, func(s classify.Signal) bool { return s.Signal == name }) {
			w.found.Signals = append(w.found.Signals, classify.Signal{Signal: name, Subject: r.Relation})
		}
	}
	for _, f := range r.view.Functions {
		if strings.Contains(f, ".") || len(r.view.Signals) >= mostSignals {
			w.found.Functions = append(w.found.Functions, f)
		}
	}
	for _, signal := range r.view.Signals {
		if signal.Signal == classify.SignalConfusableText {
			continue // of its words, which nobody is shown here
		}
		w.found.Signals = append(w.found.Signals, signal)
		if signal.Subject != "" && slices.Contains(r.view.Functions, signal.Subject) {
			w.found.Functions = append(w.found.Functions, signal.Subject)
		}
	}
	w.line("%s reads %s", r.Relation, cmp.Or(strings.Join(r.view.TablesRead, ", "), "no table"))
	for _, name := range r.view.TablesRead {
		w.read(name)
		if writes := on &^ Read; writes != 0 {
			w.write(name, writes, true)
		}
	}
}

// read adds a table that is read by what stands behind another.
func (w *resolution) read(name string) {
	w.found.TablesRead = append(w.found.TablesRead, name)
	if r := w.s.relations[name]; r != nil {
		w.reached = append(w.reached, r)
		if !r.plain {
			w.visit(r, Read)
		}
	}
}

// mostSignals is how many signals a classification lists.
const mostSignals = 32

// write adds a table that is written by what stands behind another, of which any column may be.
func (w *resolution) write(name string, on int, columns bool) {
	w.found.TablesWritten = append(w.found.TablesWritten, name)
	if columns && on&(Insert|Update) != 0 {
		w.found.ColumnsWritten = append(w.found.ColumnsWritten, name+".*")
	}
	if r := w.s.relations[name]; r != nil {
		w.reached = append(w.reached, r)
		if !r.plain {
			w.visit(r, on)
		}
	}
}

// referred follows the foreign keys that lead to a relation, and to what it is a partition of.
func (w *resolution) referred(r *relation, on int) {
	referred := r.referred
	for above, depth := r.parents, 0; len(above) > 0 && depth < deepestTree; depth++ {
		var next []*relation
		for _, parent := range above {
			referred, next = append(slices.Clip(referred), parent.referred...), append(next, parent.parents...)
		}
		above = next
	}
	for _, f := range referred {
		next := 0
		if on&Delete != 0 {
			next |= f.OnDelete
		}
		if on&Update != 0 && f.OnUpdate != 0 && (w.depth > 1 || w.writes(r, f.Key)) {
			next |= f.OnUpdate
		}
		if on&emptied != 0 && f.from != r {
			next |= Truncate | emptied
		}
		if next == 0 {
			continue
		}
		w.line("%s changes with %s, which it refers to", f.from.Relation, r.Relation)
		w.write(f.from.Relation, next, true)
	}
}

// result is what was found beyond the facts of the text, nil for nothing.
func (w *resolution) result(c *classify.Classification) *Found {
	f := &w.found
	if len(f.Lines)+len(f.Texts) == 0 { // all that is found has one
		return nil
	}
	f.Texts = beyond(f.Texts, nil)
	f.TablesRead, f.TablesWritten = beyond(f.TablesRead, c.TablesRead), beyond(f.TablesWritten, c.TablesWritten)
	f.ColumnsWritten, f.Functions = beyond(f.ColumnsWritten, c.ColumnsWritten), beyond(f.Functions, c.Functions)
	f.Lines = beyond(f.Lines, nil)
	slices.SortFunc(f.Signals, func(a, b classify.Signal) int {
		return cmp.Or(cmp.Compare(a.Signal, b.Signal), cmp.Compare(a.Subject, b.Subject))
	})
	f.Signals = slices.CompactFunc(f.Signals, func(a, b classify.Signal) bool { return a.Signal == b.Signal && a.Subject == b.Subject })
	if len(f.TablesRead)+len(f.TablesWritten)+len(f.ColumnsWritten)+len(f.Functions)+len(f.Signals)+len(f.Texts) == 0 && !f.Unkeyed {
		return nil
	}
	return f
}

// beyond are the names of a list that another one does not have, in order and each once.
func beyond(list, known []string) []string {
	list = slices.Compact(slices.Sorted(slices.Values(list)))
	return slices.DeleteFunc(list, func(name string) bool {
		_, found := slices.BinarySearch(known, name)
		return found
	})
}
