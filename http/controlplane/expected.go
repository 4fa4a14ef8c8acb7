package controlplane

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// expected is what a person must not miss of how it will go: by its limit and by the
// database's estimate.
func expected(r *approvalRow) (list []meaning) {
	p := r.Impact
	if r.MaxRows != nil && r.Uncounted != "" {
		return []meaning{{"It will fail", "floor", fmt.Sprintf("The rule lets it change %s at most, and %s can't be counted. It needs an approval under a rule without max_rows.",
			plural(int(*r.MaxRows), "row", "rows"), r.Uncounted), ""}}
	}
	if d := r.DryRun; d != nil && r.MaxRows != nil && d.MaxRows > *r.MaxRows { // which knows more than an estimate
		return []meaning{{"It will probably fail", "high", fmt.Sprintf("When it was tried, at %s, it changed %s, and over %s nothing is changed.",
			d.At.UTC().Format(time.TimeOnly), plural(int(d.MaxRows), "row", "rows"), thousands(*r.MaxRows)), ""}}
	}
	switch {
	case p != nil && strings.HasPrefix(p.Unplanned, "the database refused to plan"):
		return []meaning{{"It will probably fail", "high", capital(p.Unplanned) + ".", ""}}
	case p == nil || p.Node == "":
		return nil
	}
	rows, joins := "PostgreSQL expects "+plural(int(p.Rows), "row", "rows"), r.joins()
	all, nearly := r.all()
	every, fails := "Every row", "It will probably fail"
	table, number := r.everyRow()
	switch {
	case table != "": // which the text says, and no estimate is to say otherwise
		rows, joins = everyOf(table, number), false
	case nearly:
		every, rows = "Nearly every row", rows+" of the "+sizeOf(reached{Rows: all.Rows})+" of "+all.Table
	case all != nil && (joins || r.Classification.QueryType == "INSERT"):
		rows, every = rows+", as many as "+all.Table+" has", "Perhaps every row"
	case all != nil:
		rows += ", all of " + all.Table
	}
	if joins {
		rows, fails = rows+", counting what it is joined with, so that fewer may change", "It may fail"
	}
	if more := p.taken(); r.OverLimit && r.MaxRows != nil {
		list = append(list, meaning{fails, "high", fmt.Sprintf("%s, and over %s nothing is changed.", rows, thousands(*r.MaxRows)), ""})
	} else if r.MaxRows != nil && more >= 1 && float64(p.Rows)+more > float64(*r.MaxRows) {
		list = append(list, meaning{"It may fail", "high", fmt.Sprintf("%s, on which about %s more hang by foreign keys, if they are no different from others. Those count, and over %s nothing is changed.",
			rows, thousands(int64(more)), thousands(*r.MaxRows)), ""})
	} else if own := p.ofItself(); r.MaxRows != nil && own != "" {
		list = append(list, meaning{"It may fail", "medium", fmt.Sprintf("Rows of %s belong to others of it, directly or by other tables, those to others, and so on: how many go in all is not known. Those count, and over %s nothing is changed.", own, thousands(*r.MaxRows)), ""})
	}
	if r.MaxRows != nil && !r.OverLimit && 2*p.Rows > *r.MaxRows && slices.ContainsFunc(p.Tables, func(t reached) bool { return t.Moves }) {
		list = append(list, meaning{"It may fail", "high", fmt.Sprintf("%s. A row that moves to another partition counts twice, and over %s nothing is changed.", rows, thousands(*r.MaxRows)), ""})
	}
	if r.manyByKey() {
		list = append(list, meaning{"More than one row", "high", rows + ", though the condition gives one value: the column is called like a key, and may be none.", ""})
	}
	if all != nil && len(list) == 0 {
		list = append(list, meaning{every, "high", rows + ".", ""})
	}
	if own := p.ofItself(); own != "" && len(list) == 0 {
		list = append(list, meaning{"May be many more", "high", fmt.Sprintf("%s, but rows of %s belong to others of it, directly or by other tables, those to others, and so on: how many go in all is not known.", rows, own), ""})
	}
	if why := r.guess(); why != "" && len(list) == 0 {
		list = append(list, meaning{"May be many more", "medium", rows + ", but " + why, ""})
	}
	switch more := p.taken(); {
	case len(list) > 0:
	case p.Rows >= manyRows:
		list = append(list, meaning{"Many rows", "high", rows + ".", ""})
	case float64(p.Rows)+more >= manyRows:
		list = append(list, meaning{"Many rows", "high", fmt.Sprintf("%s, on which about %s more hang by foreign keys, if they are no different from others.", rows, thousands(int64(more))), ""})
	}
	for _, t := range p.Tables {
		if t.Old && t.How == "named" && !slices.Equal(r.Classification.Where, []string{"key_equality"}) {
			list = append(list, meaning{"May be many more", "medium", fmt.Sprintf("%s, but it counted %s before most of its rows were written: %s by now.", rows, t.Table, sizeOf(t)), ""})
			break
		}
	}
	return list
}

// makers are functions that make rows of one value, or of few.
var makers = []string{"GENERATE_SERIES", "GENERATE_SUBSCRIPTS", "UNNEST", "STRING_TO_TABLE", "REGEXP_SPLIT_TO_TABLE", "REGEXP_MATCHES", "JSON_ARRAY_ELEMENTS", "JSONB_ARRAY_ELEMENTS", "JSON_EACH", "JSONB_EACH", "JSON_TABLE", "XMLTABLE"}

// guess says why what PostgreSQL expects may be far off, by the text: its statistics know
// columns, and neither what a condition calculates nor how many rows are made.
func (r *approvalRow) guess() string {
	var words []sqlPiece
	for _, p := range scanned(r.SQL, nil).pieces {
		if p.Kind != "comment" && p.Kind != "string" && strings.TrimSpace(p.Text) != "" {
			words = append(words, p)
		}
	}
	conditions := false
	for i, p := range words {
		word, call := strings.ToUpper(p.Text), p.Kind == "word" && i+1 < len(words) && strings.HasPrefix(words[i+1].Text, "(") && (i+2 == len(words) || !strings.HasPrefix(words[i+2].Text, ")")) // now() is a constant
		switch {
		case word == "RECURSIVE", call && slices.Contains(makers, word):
			return "it makes rows by " + strings.ToLower(word) + ", and PostgreSQL only guesses how many."
		case word == "WHERE", word == "ON":
			conditions = true
		case !conditions || r.Classification.QueryType == "INSERT" || !slices.Contains(r.Classification.Where, "present"):
		case call, word == "CASE", word == "CTID", word == "ARRAY", p.Kind != "word" && p.Kind != "number" && strings.ContainsAny(word, "+-*/%|#&~^@"):
			return "its condition calculates, and PostgreSQL only guesses for how many rows it holds: it may be all."
		}
	}
	return ""
}

// manyRows is how many are told by themselves.
const manyRows = 10_000

// joins tells whether what PostgreSQL expects may count a row more than once: its number is
// of the rows of a join.
func (r *approvalRow) joins() bool {
	return r.Classification.QueryType != "INSERT" && len(r.Reads()) > 0
}

// manyByKey tells whether several rows are expected where the text says one. Of rows that
// are written out each has a key of its own.
func (r *approvalRow) manyByKey() bool {
	c := &r.Classification
	return (c.QueryType == "UPDATE" || c.QueryType == "DELETE") && slices.Equal(c.Where, []string{"key_equality"}) && r.Impact != nil && r.Impact.Rows > max(1, r.Impact.Parts)
}

// everyRow is the table of which the text of a change says that it reaches every row, and
// how many those are; "": it says no such thing, or their number is not known.
func (r *approvalRow) everyRow() (table string, rows int64) {
	c, p := &r.Classification, r.Impact
	every := len(c.Where) == 1 && (c.Where[0] == "none" || c.Where[0] == "tautology")
	if p == nil || p.Node == "" || !every || len(c.TablesWritten) != 1 || c.QueryType != "UPDATE" && c.QueryType != "DELETE" {
		return "", 0
	}
	named := slices.IndexFunc(p.Tables, func(t reached) bool { return t.How == "named" && t.Table == c.TablesWritten[0] })
	switch counted := named >= 0 && p.Tables[named].Rows != nil && *p.Tables[named].Rows >= 0; {
	case c.Where[0] == "none" && !r.joins(): // it is estimated by the size that the table has now
		return c.TablesWritten[0], p.Rows
	case !counted:
		return "", 0
	case r.joins():
		return c.TablesWritten[0], *p.Tables[named].Rows
	default: // that a condition is always true, PostgreSQL may not see
		return c.TablesWritten[0], max(p.Rows, *p.Tables[named].Rows)
	}
}

func everyOf(table string, rows int64) string {
	return "It changes every row of " + table + ", about " + thousands(rows)
}

// all is the table of which a change with a condition is expected to reach every row, or
// nearly: more than nine of ten.
func (r *approvalRow) all() (table *reached, nearly bool) {
	if c := &r.Classification; !slices.Contains(c.QueryTypes, "UPDATE") && !slices.Contains(c.QueryTypes, "DELETE") || len(c.TablesWritten) != 1 || slices.Contains(c.Where, "none") || slices.Contains(c.Where, "tautology") {
		return nil, false
	}
	var found *reached
	in := int64(0)
	for i, t := range r.Impact.tables() {
		if t.How == "named" && t.Table == r.Classification.TablesWritten[0] && t.Rows != nil && *t.Rows > 1 && 10*r.Impact.Rows > 9**t.Rows {
			found = &r.Impact.Tables[i]
			in += *t.Rows
		}
		if t.How == "child" && t.Rows != nil { // its rows are a part of the other's
			in += *t.Rows
		}
	}
	switch {
	case found != nil && r.Impact.Rows >= in:
		return found, false
	case found != nil && 10*r.Impact.Rows > 9*in && !r.joins() && r.Classification.QueryType != "INSERT":
		return found, true
	}
	return nil, false
}

// unlooked says why it is not known which tables a write reaches besides; "": it is, or it
// has run.
func (r *approvalRow) unlooked() string {
	c := &r.Classification
	switch {
	case c.Class != "write" && c.QueryType != "TRUNCATE", r.ExecutionID != "":
		return ""
	case r.Impact == nil && len(c.TablesWritten) > 0:
		return "GATE_PLAN_ESTIMATES is off, or an operator alone is told"
	}
	for _, name := range c.TablesWritten { // what its own transaction made is seen by no other
		if !strings.Contains(name, "*") && !slices.ContainsFunc(r.Impact.Tables, func(t reached) bool { return t.Table == name }) && r.Impact.More == 0 {
			return cmp.Or(r.Impact.Omitted, "the database had no table "+name+" when it was asked for")
		}
	}
	if len(c.TablesWritten) > 0 && len(r.Impact.tables()) == 0 {
		return cmp.Or(r.Impact.Omitted, "it names none of the tables that it writes")
	}
	return ""
}

// unseen says why code of users may run behind it that nothing tells of: it kept the gate
// from having it planned, too.
func (r *approvalRow) unseen() string {
	if p := r.Impact; p != nil && (strings.Contains(p.Unplanned, "not built in") || strings.HasSuffix(p.Unplanned, "no plain table")) {
		return p.Unplanned
	}
	return ""
}

// closely says why a statement is to be looked at of which there is nothing else to say.
func (r *approvalRow) closely() string {
	c := &r.Classification
	switch {
	case r.Risk != "elevated":
		return ""
	case c.Class == "dcl":
		return "it changes who may do what"
	case c.Class == "ddl":
		return "it changes what others find in the database"
	}
	return "how many rows its condition finds, the text does not say"
}
