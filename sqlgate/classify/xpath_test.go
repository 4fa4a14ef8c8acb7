package classify

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A path within a test is evaluated for each node that is tested, and libxml looks at no
// interrupt: what may multiply so is no safe read.
func TestAnXPathThatMayMultiplyIsNoSafeRead(t *testing.T) {
	tb := newTestTables(t, Config{})
	plain := []string{
		"/", "/a", "a", "//a", "/a/b[@id=\"7\"]/text()", "//item[name=\"x\"][2]/@price", "/ns:a/*[last()]", "count(//b)", "string(/a/b[1])", "/a/b[position()<=5 and @x != 'y']",
		"/Zeile/Länge", "./a/..", "//b[. = 'x']", "/a/node()", "/a[b or @c]", "sum( /a/b )", `//book[contains(title,"x")]`, `//*[local-name()="a"]/text()`, "//a[not(@b)]", "/a[last()-1]", "//b[starts-with( @x , 'a') or not(c = 1)]", "//*[namespace-uri()='urn:x' and name() != 'y']",
	}
	slow := []string{
		"//b[count(//b)>0]", "//b[b/c]", "//b[.//c]", "//b[c[d]]", "//b[//c]", "//a//b", "//*[*]//node()/b[1]", "//b[following::b]", "following::b", "//b[count(b)]", "/a | /b", "//b[not(//b)]", "//b[contains(string(/), 'x')]",
		"count(//b[//b])", "(//b)[1]", "//b[id('x')]", strings.Repeat("/a", 600), "", "//b[ancestor::*]", "$x", `//b[contains(//c,"x")]`, "//b[contains(., //c)]", "//b[not(contains(a/b, 'x'))]", "//b[local-name(//c)='c']", "//b[last()-count(//c)]", "//b[not(not(//c))]",
	}
	for _, form := range []string{
		"SELECT xpath('%', x) FROM t", "SELECT xpath('%'::text, x, ARRAY[ARRAY['ns', 'y']]) FROM t", "SELECT xpath_exists('%', x) FROM t", "SELECT 1 FROM t WHERE xmlexists('%' PASSING x)",
		"SELECT 1 FROM t, XMLTABLE('%' PASSING x COLUMNS a int)", "SELECT 1 FROM t, XMLTABLE('/a' PASSING x COLUMNS n FOR ORDINALITY, a int, b text PATH '%')",
	} {
		judge := func(path string) Classification {
			return mustClassify(t, tb, strings.Replace(form, "%", strings.ReplaceAll(path, "'", "''"), 1))
		}
		for _, path := range plain {
			c := judge(path)
			require.True(t, c.SafeRead, "%s: %s: %v", form, path, c.RiskSignals)
		}
		for _, path := range slow {
			c := judge(path)
			require.False(t, c.SafeRead, "%s: %s", form, path)
			require.True(t, slices.Contains(c.RiskSignals, SignalDelayFunction), "%s: %s: %v", form, path, c.RiskSignals)
		}
	}
	for _, sql := range []string{"SELECT xpath($1, x) FROM t", "SELECT xpath(p, x) FROM t", "SELECT xpath('//b' || '[//b]', x) FROM t", "SELECT xpath(VARIADIC ARRAY['//b']) FROM t",
		"SELECT 1 FROM t, XMLTABLE(p PASSING x COLUMNS a int)", "SELECT 1 FROM t, XMLTABLE('/a' PASSING x COLUMNS a int PATH p)"} {
		require.False(t, mustClassify(t, tb, sql).SafeRead, sql)
	}
}
