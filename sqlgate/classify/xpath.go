package classify

import (
	"regexp"
	"strings"
)

// xpathFunctions evaluate their first argument, a path.
var xpathFunctions = []string{"xmlexists", "xpath", "xpath_exists"}

// plainXPath holds for a path (XPath 1.0) whose evaluation grows with the document and not
// with a power of it: steps with tests of what stands beside them, and no path within a
// test. libxml looks at no interrupt while it evaluates one, and each level of paths within
// tests multiplies the work by the document; a second // meets each node once for each of
// those around it, and libxml looks for each of them through all that it has.
func plainXPath(path string) bool {
	return len(path) <= 1<<10 && strings.Count(path, "//") <= 1 && xpathPlain.MatchString(path)
}

var xpathPlain = func() *regexp.Regexp {
	const (
		name    = `(?:\*|[\pL_][\pL\pN_.\-]*(?::(?:\*|[\pL_][\pL\pN_.\-]*))?)`
		step    = `(?:@?` + name + `|text\(\)|node\(\)|\.\.?)`
		literal = `(?:'[^']*'|"[^"]*"|\d+(?:\.\d+)?)`
		operand = `(?:@?` + name + `|text\(\)|\.|position\(\))`
		value   = `(?:` + operand + `|(?:local-name|name|namespace-uri|normalize-space|string-length)\(\))`
		plain   = `(?:\d+|last\(\)(?:\s*-\s*\d+)?|(?:contains|starts-with)\(\s*` + operand + `\s*,\s*` + literal + `\s*\)|` + value + `(?:\s*(?:=|!=|<=?|>=?)\s*` + literal + `)?)`
		test    = `(?:` + plain + `|not\(\s*` + plain + `\s*\))`
		tests   = `(?:\[\s*` + test + `(?:\s+(?:and|or)\s+` + test + `)*\s*\])*`
		steps   = `/{0,2}` + step + tests + `(?:/{1,2}` + step + tests + `)*`
		of      = `(?:boolean|count|local-name|name|normalize-space|number|string|string-length|sum)`
	)
	return regexp.MustCompile(`^\s*(?:/|` + steps + `|` + of + `\(\s*` + steps + `\s*\))\s*$`)
}()

// onXMLTable judges the paths of XMLTABLE: that of its rows, and those of its columns.
func onXMLTable(w *walk, i int32) {
	onRangeItem(w, i)
	paths := []int32{w.child(i, "rowexpr")}
	for column := range w.items(i, "columns") {
		if path := w.child(column, "colexpr"); path >= 0 {
			paths = append(paths, path)
		}
	}
	for _, at := range paths {
		if path, ok := w.constantText(at); !ok || !plainXPath(path) {
			w.callSignal(SignalDelayFunction, "xmltable", i)
			return
		}
	}
}
