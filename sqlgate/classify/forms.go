package classify

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// A call of a built-in function's name is one of the built-in only if its form fits:
// PostgreSQL looks for a function among all of the name in pg_catalog and on the
// search path, and a call that no built-in takes can only be one of the users'. The
// forms stand in data/functions.tsv, from the four servers:
//
//	2        two arguments; 1-3: the last two have defaults; 1*: the last is VARIADIC, so one or more
//	a1 w1    the same of an aggregate and of a window function
//	o1+1     an ordered-set aggregate: one argument, and one behind ORDER BY in WITHIN GROUP
//	h        a hypothetical-set aggregate: as many arguments as behind ORDER BY
//	2(a,b)   the arguments have names
//	2@17,18  only these majors have it

// Kinds of forms.
const (
	plainForm        = 'f'
	aggregateForm    = 'a'
	windowForm       = 'w'
	orderedForm      = 'o'
	hypotheticalForm = 'h'
	procedureForm    = 'p'
	castForm         = 'c' // a cast written as a call; in no table
)

// A form is what one built-in function takes.
type form struct {
	kind     byte
	least    int // arguments without a default
	most     int
	direct   int // orderedForm: of most, those that are not behind ORDER BY
	variadic bool
	names    []string // of all arguments, "" for one without; nil for none
	versions versions
}

// parseForms reads the forms of a name that these versions have.
func parseForms(list string, all versions) ([]form, error) {
	var forms []form
	for word := range strings.FieldsSeq(list) {
		f := form{kind: plainForm, versions: all}
		shape, of, some := strings.Cut(word, "@")
		var err error
		if some {
			f.versions, err = parseVersions(of)
		}
		shape, names, named := strings.Cut(shape, "(")
		if named {
			f.names = strings.Split(strings.TrimSuffix(names, ")"), ",")
		}
		if strings.IndexByte("awohp", shape[0]) >= 0 {
			f.kind, shape = shape[0], shape[1:]
		}
		shape, f.variadic = strings.CutSuffix(shape, "*")
		if f.kind == hypotheticalForm {
			f.most = 1 // VARIADIC "any"
		} else if err == nil {
			err = f.parseNumbers(shape)
		}
		if err != nil || f.names != nil && len(f.names) != f.most {
			return nil, fmt.Errorf("embedded table of functions: form %q: %w", word, err)
		}
		forms = append(forms, f)
	}
	return forms, nil
}

func (f *form) parseNumbers(shape string) (err error) {
	separator := "-"
	if f.kind == orderedForm {
		separator = "+"
	}
	first, second, both := strings.Cut(shape, separator)
	if f.least, err = strconv.Atoi(first); err != nil || !both {
		f.most = f.least
		return err
	}
	f.most, err = strconv.Atoi(second)
	if f.kind == orderedForm {
		f.direct, f.most = f.least, f.least+f.most
		f.least = f.most
	}
	return err
}

// aggregates reports whether a form is of an aggregate or a window function.
func (f *form) aggregates() bool {
	switch f.kind {
	case aggregateForm, windowForm, orderedForm, hypotheticalForm:
		return true
	}
	return false
}

// A callForm is the form of a call in the text.
type callForm struct {
	args     int
	names    [][]byte // of the last arguments
	ordered  int      // behind ORDER BY
	star     bool
	distinct bool
	filter   bool
	within   bool
	over     bool
	variadic bool
	byCall   bool // of a procedure, by CALL

	aggregate bool // it stands where an aggregate may
	window    bool // and where a window function may
}

// callOf reads the form of a FuncCall.
func (w *walk) callOf(i int32) callForm {
	c := callForm{byCall: w.fieldName(i) == "funccall"}
	for part := i + 1; part < w.e[i].next; part = w.e[part].next {
		switch w.fieldName(part) {
		case "args":
			for arg := part + 1; arg < w.e[part].next; arg = w.e[arg].next {
				c.args++
				if w.is(arg, "NamedArgExpr") {
					c.names = append(c.names, w.text(arg, "name"))
				}
			}
		case "agg_order":
			for range w.items(i, "agg_order") {
				c.ordered++
			}
		case "agg_star":
			c.star = true
		case "agg_distinct":
			c.distinct = true
		case "agg_filter":
			c.filter = true
		case "agg_within_group":
			c.within = true
		case "over":
			c.over = true
		case "func_variadic":
			c.variadic = true
		}
	}
	return c
}

// takenBy reports whether PostgreSQL may take the call for one of a function of
// this form. Types are not looked at.
func (c *callForm) takenBy(f *form) bool {
	switch f.kind {
	case plainForm, procedureForm, castForm:
		if c.star || c.distinct || c.filter || c.within || c.over || c.ordered > 0 || c.byCall != (f.kind == procedureForm) {
			return false
		}
	case aggregateForm:
		if c.within || c.byCall || c.over && (c.distinct || c.ordered > 0 || !c.window) || !c.over && !c.aggregate || c.star != (c.args == 0) {
			return false
		}
	case windowForm:
		if !c.over || !c.window || c.distinct || c.filter || c.within || c.ordered > 0 {
			return false
		}
	case orderedForm:
		return c.within && c.aggregate && !c.over && c.args == f.direct && c.args+c.ordered == f.most && c.names == nil
	case hypotheticalForm:
		return c.within && c.aggregate && !c.over && c.args == c.ordered && c.names == nil
	default:
		return false
	}
	expanded := f.variadic && !c.variadic // the arguments are the elements of the last one
	switch {
	case c.names != nil:
		return !expanded && c.args <= f.most && c.namesIn(f)
	case expanded:
		return c.args >= f.least
	}
	return f.least <= c.args && c.args <= f.most
}

// namesIn reports whether the named arguments are of the function and the others
// are given or have defaults.
func (c *callForm) namesIn(f *form) bool {
	if c.variadic && slices.Index(f.names, string(c.names[len(c.names)-1])) != c.args-1 {
		return false // what VARIADIC stands for comes last
	}
	first := c.args - len(c.names)
	given := 0 // of those without default, behind the ones without name
	for n, name := range c.names {
		at := slices.Index(f.names, string(name))
		if at < first || len(name) == 0 || slices.ContainsFunc(c.names[:n], func(b []byte) bool { return string(b) == string(name) }) {
			return false
		}
		if at < f.least {
			given++
		}
	}
	return given >= f.least-first
}

// called finds the built-in function that a FuncCall may be a call of; nil means
// that it can't be one.
func (w *walk) called(i int32) (schema, name []byte, f *function) {
	schema, name = w.qualified(i, "funcname")
	if f = w.t.builtin(schema, name); f == nil {
		return schema, name, nil
	}
	c := w.callOf(i)
	if len(schema) == 0 && string(name) == "unnest" && w.isManyUnnests(i, &c) {
		c.args = 1
	}
	if slices.ContainsFunc(f.forms, func(of form) bool { return of.aggregates() }) && !w.refusedNesting(i) {
		c.aggregate, c.window = !c.over && w.mayAggregate(i), c.over && w.mayWindow(i)
	}
	if !f.takes(&c, w.t.engine.ServerMajor) {
		return schema, name, nil
	}
	return schema, name, f
}

// takes reports whether every server of the major has a function of the name that may
// take the call.
func (f *function) takes(c *callForm, major int) bool {
	var on versions // the majors that have one
	for k := range f.forms {
		if of := &f.forms[k]; c.takenBy(of) {
			if on |= of.versions; on.in(major) {
				return true
			}
		}
	}
	return false
}

// mayAggregate reports whether a call stands where an aggregate may: in one of these
// clauses of its own SELECT, or of one around it, where it names a column that may
// be that one's.
func (w *walk) mayAggregate(call int32) bool {
	own := true
	for i := call; i > 0; i = w.e[i].parent {
		w.steps++
		parent := w.e[i].parent
		if w.is(parent, "SelectStmt") && (own || w.has(parent, "fromClause")) {
			switch w.fieldName(i) {
			case "targetList", "distinctClause", "sortClause", "havingClause", "windowClause":
				return true
			}
		}
		if !w.isQuery(parent) {
			continue
		}
		if own && !w.holdsColumn(call) {
			return false
		}
		own = false
	}
	return false
}

// holdsColumn reports whether a column or a whole row is named below a node.
func (w *walk) holdsColumn(i int32) bool {
	for below := i + 1; below < w.e[i].next; below++ {
		if w.steps++; w.is(below, "ColumnRef") {
			return true
		}
	}
	w.bounded()
	return false
}

// mayWindow reports whether a call stands where a window function may, in its own
// SELECT.
func (w *walk) mayWindow(i int32) bool {
	for ; i > 0; i = w.e[i].parent {
		w.steps++
		if w.isQuery(w.e[i].parent) {
			name := w.fieldName(i)
			return w.is(w.e[i].parent, "SelectStmt") && (name == "targetList" || name == "distinctClause" || name == "sortClause")
		}
		if w.fieldName(i) == "over" { // of another one's window
			return false
		}
	}
	return false
}

// isManyUnnests sees FROM unnest(a, b), which PostgreSQL reads as a call of the
// built-in for each argument.
func (w *walk) isManyUnnests(i int32, c *callForm) bool {
	list := w.owner(i)
	if !w.is(w.owner(list), "RangeFunction") || w.fieldName(list) != "functions" || c.ordered > 0 || c.filter || c.within || c.star || c.distinct || c.variadic || c.over {
		return false
	}
	next := w.e[i].next
	return c.args > 1 && (next >= w.e[list].next || w.e[next].msg == 0) // no list of columns behind it
}
