package classify

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// libxml looks at no interrupt while it evaluates a path, and version 2.9.14 (of Debian 12)
// reads at address 0 where one of its small allocations fails, which ends the whole server:
// no path is a safe read, however plain. What it parses and writes has no such place.
func TestNoXPathIsASafeRead(t *testing.T) {
	tb := newTestTables(t, Config{})
	for _, path := range []string{"'/'", "'/a'", "'//a'::text", "'//b[count(//b)>0]'", "$1", "p", "'//b' || '[//b]'"} {
		for _, sql := range []string{
			"SELECT xpath(" + path + ", x) FROM t", "SELECT pg_catalog.xpath(" + path + ", x, ARRAY[ARRAY['ns', 'y']]) FROM t", "SELECT xpath_exists(" + path + ", x) FROM t",
			"SELECT 1 FROM t WHERE xmlexists((" + path + ") PASSING x)", "SELECT 1 FROM t, XMLTABLE((" + path + ") PASSING x COLUMNS a int)", "SELECT 1 FROM t, XMLTABLE('/a' PASSING x COLUMNS n FOR ORDINALITY, a int, b text PATH (" + path + "))",
		} {
			c := mustClassify(t, tb, sql)
			require.False(t, c.SafeRead, sql)
			require.Contains(t, c.RiskSignals, SignalDelayFunction, sql)
			require.Equal(t, ClassWrite, c.Class, sql)
		}
	}
	for _, sql := range []string{"SELECT '<a/>'::xml IS DOCUMENT, xmlparse(CONTENT 'a'), xml_is_well_formed(a), xmlelement(NAME a, b) FROM t", "SELECT doc FROM t"} {
		require.True(t, mustClassify(t, tb, sql).SafeRead, sql)
	}
}
