package classify

import (
	"regexp"
	"strings"
)

// plainJSONPath holds for a path (PostgreSQL "The SQL/JSON Path Language") that compares
// with literals and variables alone and goes down through all levels once at most. A
// comparison of two paths compares all pairs of what they find, in a loop that looks at no
// interrupt, and each further .** multiplies what they find.
func plainJSONPath(path string) bool {
	path = jsonpathString.ReplaceAllStringFunc(path, func(found string) string {
		if found[0] == '"' {
			return `""`
		}
		return found // an escape in a name without quotes, where a quote begins no string
	})
	if len(path) > 1<<10 || strings.Contains(path, "/*") || strings.Contains(path, `\`) || strings.Count(path, "**") > 1 {
		return false
	}
	for _, at := range jsonpathCompares.FindAllStringIndex(path, -1) {
		if !jsonpathLiteralAhead.MatchString(path[at[1]:]) && !jsonpathLiteralBehind.MatchString(path[:at[0]]) {
			return false
		}
	}
	return true
}

// jsonpathOfOne are the methods that make one value of one.
const jsonpathOfOne = `(?:\.(?:datetime|date|time_tz|time|timestamp_tz|timestamp|double|number|decimal|bigint|integer|boolean|string)\((?:""|[\d\s,-]*)\))?`

var (
	jsonpathString        = regexp.MustCompile(`(?s)\\.|"(?:[^"\\]|\\.)*"`)
	jsonpathVariable      = regexp.MustCompile(`\$["\pL_]`)
	jsonpathCompares      = regexp.MustCompile(`==|!=|<>|<=|>=|<|>`)
	jsonpathLiteralAhead  = regexp.MustCompile(`^\s*(?:[-+]?[0-9.]+|(?:""|\$(?:""|[\pL_][\pL\pN_]*))` + jsonpathOfOne + `|true|false|null)\s*(?:$|[)&|])`)
	jsonpathLiteralBehind = regexp.MustCompile(`(?:^\s*(?:(?:strict|lax)\s)?|[(!&|])\s*(?:[-+]?[0-9.]+|""` + jsonpathOfOne + `|true|false|null)\s*$`)
)

// judgeJSONPath raises what a path that is no plain constant may do.
func (w *walk) judgeJSONPath(path string, constant bool, i int32) {
	if !constant || !plainJSONPath(path) {
		w.callSignal(SignalDelayFunction, "jsonpath", i)
	}
}

// variablesAreOne tells that no variable of a path is an array, of which a comparison would take
// each: the text has their values. An operator takes none.
func (w *walk) variablesAreOne(call int32, path string) bool {
	if !jsonpathVariable.MatchString(path) || !w.is(call, "FuncCall") {
		return true
	}
	place := 0
	for arg := range w.items(call, "args") {
		if place++; place == 3 {
			if w.is(arg, "TypeCast") && w.isTypeNamed(w.child(arg, "typeName"), "jsonb") && !w.isArray(w.child(arg, "typeName")) {
				arg = w.child(arg, "arg")
			}
			values, constant := w.constantText(arg)
			return constant && !strings.Contains(values, "[")
		}
	}
	return false
}

// onExpr sees operators, and the path on the right of those that take one. @@ is that of
// text search too, whose constants have no $. What else stands behind it is no path unless the text
// says jsonpath, which onTypeName sees, or a table's column is one; but for what has no type of its own,
// and gets one there: a constant or a parameter, by itself or below what leaves it so.
func onExpr(w *walk, i int32) {
	if w.isBetween(i) {
		return
	}
	w.operator(i, "name")
	name := ""
	for part := range w.items(i, "name") {
		name = string(w.text(part, "sval"))
	}
	if name != "@@" && name != "@?" {
		return
	}
	left, right := w.child(i, "lexpr"), w.child(i, "rexpr")
	untyped := w.untyped(right)
	path, constant := w.constantText(untyped)
	switch {
	case w.is(left, "RowExpr") || w.is(right, "RowExpr"): // of one field each, it is the operator between these
		w.judgeJSONPath("", false, i)
	case constant && strings.Contains(path, "$"):
		w.judgeJSONPath(path, untyped == right && string(w.raw(i, "kind")) == "AEXPR_OP", i)
	case name == "@?" && !w.is(untyped, "A_Const") && !(w.is(right, "TypeCast") && w.isTypeNamed(w.child(right, "typeName"), "jsonpath")):
		w.judgeJSONPath("", false, i)
	case name == "@@" && left >= 0 && w.is(untyped, "ParamRef") && !w.isTextSearch(left):
		w.judgeJSONPath("", false, i)
	}
}

// untyped is what stands below COLLATE and casts to unknown, which leave a constant or a parameter
// without a type.
func (w *walk) untyped(i int32) int32 {
	for w.is(i, "CollateClause") || w.is(i, "TypeCast") && w.isTypeNamed(w.child(i, "typeName"), "unknown") {
		w.steps++
		i = w.child(i, "arg")
	}
	return i
}

// isTextSearch tells of what stands before @@ that no path can stand behind it.
func (w *walk) isTextSearch(i int32) bool {
	if w.is(i, "TypeCast") {
		return w.isTypeNamed(w.child(i, "typeName"), "tsvector") && !w.isArray(w.child(i, "typeName"))
	}
	if !w.is(i, "FuncCall") {
		return false
	}
	_, _, f := w.called(i)
	return f != nil && f.name == "to_tsvector"
}

// takesPath tells of a cast that it stands where its value is taken for a path at once: anywhere
// else it makes paths of untyped constants beside it.
func (w *walk) takesPath(cast int32) bool {
	switch owner := w.owner(cast); {
	case w.is(owner, "A_Expr") && w.child(owner, "rexpr") == cast && string(w.raw(owner, "kind")) == "AEXPR_OP":
		name := ""
		for part := range w.items(owner, "name") {
			name = string(w.text(part, "sval"))
		}
		return name == "@@" || name == "@?"
	case w.is(owner, "FuncCall"):
		_, _, f := w.called(owner)
		return f != nil && f.setting == takesJSONPath
	}
	return false
}
