package classify

import (
	_ "embed" // the table below
	"slices"
	"strings"
	"sync"
)

// The functions whose effect no rollback undoes, built in and of the extensions that
// come with the server, with what they leave. nextval is not among them: it leaves a gap
// in the numbers and nothing else, by a column's default too; nor are those whose effect
// goes when the connection is given back (locks of the session, setseed). Nor are
// ANALYZE and CREATE INDEX, which write numbers for the planner into pg_class in place. No
// classification depends on the table, so the engine is not named by it.
//
//go:embed data/lasting_functions.tsv
var lastingTSV string

var lastingFunctions = sync.OnceValues(func() (builtin, extension map[string]bool) {
	builtin, extension = map[string]bool{}, map[string]bool{}
	rows, err := tsv(lastingTSV, 3)
	if err != nil {
		panic(err) // embedded: a test reads it
	}
	for _, r := range rows {
		if r[0] == "" {
			builtin[r[1]] = true
		} else {
			extension[r[1]] = true
		}
	}
	return builtin, extension
})

// OutlastsRollback reports whether a statement with these facts names something that a
// rollback does not undo: a function such as setval or dblink_exec, a file or a program
// of the server's. Code that is called without its name in the text (of triggers, of
// functions of the owner) does not show here. A list of functions that was cut may miss one.
func OutlastsRollback(queryTypes, functions, riskSignals []string) bool {
	if slices.Contains(riskSignals, SignalServerProgram) || len(functions) >= maxFacts && slices.Contains(riskSignals, SignalOversizedFacts) ||
		slices.Contains(queryTypes, TypeCopyTo) && slices.Contains(riskSignals, SignalServerFileAccess) {
		return true
	}
	if len(functions) == 0 {
		return false
	}
	builtin, extension := lastingFunctions()
	return slices.ContainsFunc(functions, func(name string) bool {
		dot := strings.LastIndexByte(name, '.')
		return dot < 0 && builtin[name] || dot >= 0 && extension[name[dot+1:]]
	})
}
