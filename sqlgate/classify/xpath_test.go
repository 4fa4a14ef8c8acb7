package classify

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// libxml looks at no interrupt while it evaluates a path, and version 2.9.14 (of Debian 12)
// reads at address 0 where one of its small allocations fails, which ends the whole server:
// no path is a safe read, however plain. 2.9.4 does so where it parses, too, and all where they write
// with INDENT (16 and later): nothing of XML is one, but what a column holds.
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
	indented := newTestTables(t, Config{ServerMajor: 16})
	for _, sql := range []string{"SELECT xmlserialize(CONTENT a AS text INDENT) FROM t", "SELECT length(xmlserialize(DOCUMENT a::xml AS varchar(9) INDENT))", "SELECT 1 WHERE EXISTS (SELECT FROM t ORDER BY xmlserialize(CONTENT a AS text INDENT))"} {
		c := mustClassify(t, indented, sql)
		require.False(t, c.SafeRead, sql)
		require.Contains(t, c.RiskSignals, SignalDelayFunction, sql)
	}
	for _, sql := range []string{"SELECT '<a/>'::xml", "SELECT xml '<a/>'", "SELECT CAST(a AS xml[]) FROM t", "SELECT a IS DOCUMENT FROM t", "SELECT xmlparse(CONTENT a) FROM t", "SELECT xml_is_well_formed(a) FROM t", "SELECT pg_catalog.xml(a) FROM t",
		"SELECT xmlelement(NAME a, b) FROM t", "SELECT xmlconcat(a, b), xmlforest(a) FROM t", "SELECT xmlagg(a) FROM t", "SELECT xmlcomment('a')", "SELECT xmlserialize(DOCUMENT a AS text) FROM t", "SELECT * FROM json_to_record(a) AS x(b xml)",
		"SELECT xmlroot(a, version '1.0') FROM t", "SELECT xmlpi(NAME php)", "SELECT x FROM t WHERE x IS NOT DOCUMENT", "SELECT x.xml_is_well_formed FROM unnest(ARRAY['<a/>']) x",
		"SELECT '{<a/>}'::_xml", "SELECT pg_catalog._xml '{<a/>}'", "SELECT coalesce(NULL::_xml, '{<a/>}')", "SELECT * FROM json_to_record(a) AS x(b _xml)", "SELECT xml_out('<a/>')", "SELECT pg_catalog.xml_send('<a/>')"} {
		c := mustClassify(t, tb, sql)
		require.False(t, c.SafeRead, sql)
		require.Contains(t, c.RiskSignals, SignalDelayFunction, sql)
	}
	for _, sql := range []string{"SELECT doc FROM t", "SELECT indent, xml FROM t AS indent", "SELECT t.xml FROM t"} {
		require.True(t, mustClassify(t, indented, sql).SafeRead, sql)
	}
	require.NotContains(t, mustClassify(t, tb, "CREATE TABLE t (x xml)").RiskSignals, SignalDelayFunction)
}
