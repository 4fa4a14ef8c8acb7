package controlplane

import (
	"slices"
	"strings"
)

// callWords are signals that a call raises, gravest first, with what the called may do as the
// rest of a sentence: of a query that is held for one, that is what it does.
var callWords = [][2]string{
	{"unknown_function", "may change anything"},
	{"sql_executing_function", "runs SQL given to it as text"},
	{"server_program", "runs a program on the database server, or loads code into it"},
	{"remote_access", "reaches out to another server"},
	{"backend_control", "controls the database server itself"},
	{"server_file_access", "reads or writes files of the database server"},
	{"identity_switch", "changes whose rights the connection has"},
	{"session_change", "changes the state of the connection, or tells others"},
	{"sequence_change", "moves a sequence"},
	{"advisory_lock", "takes or gives back a lock of its own"},
	{"secret_catalog_read", "reads what the server keeps secret"},
	{"delay_function", "waits on purpose"},
	{"volatile_function", "can have another effect each time"},
}

// mostSignals is how many signals a classification lists; the names of all are in its risk
// signals.
const mostSignals = 32

// calls names what a statement calls that is not known to be safe, each with the gravest that
// is known of it.
func calls(c *classification) string {
	var list, named []string
	for _, words := range callWords {
		var objects, others []string // large objects, which count as files, and all else
		for _, s := range c.Signals {
			if s.Signal != words[0] {
				continue
			}
			switch {
			case !slices.Contains(c.Functions, s.Subject) || slices.Contains(named, s.Subject):
				continue
			case s.Signal == "server_file_access" && strings.HasPrefix(s.Subject, "lo") && s.Subject != "lo_import" && s.Subject != "lo_export":
				objects = append(objects, s.Subject)
			default:
				others = append(others, s.Subject)
			}
			named = append(named, s.Subject)
		}
		if slices.Contains(c.unlisted(), words[0]) {
			list = append(list, "what is not listed, which "+words[1])
		}
		if len(objects) > 0 {
			list = append(list, few(tableList(objects))+", which reads or changes large objects")
		}
		if len(others) > 0 {
			list = append(list, few(tableList(others))+", which "+words[1])
		}
	}
	return strings.Join(list, ", and ")
}
