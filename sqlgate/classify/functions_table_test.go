package classify

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Functions that tell what the reviewed columns and settings keep, write a line into
// the server's log for each row, open a table that no text names, or leave an XPath to libxml: held to be strict
// since these were looked at.
var tightened = append([]string{"jsonpath_in", "xml", "xml_in", "xml_is_well_formed", "xml_is_well_formed_content", "xml_is_well_formed_document", "xml_out", "xml_send", "xmlagg", "xmlcomment", "xmlconcat2", "xmltext", "xmlvalidate", "xmlexists", "xpath", "xpath_exists", "inet_server_addr", "inet_server_port", "pg_replication_origin_oid", "pg_tablespace_location", "satisfies_hash_partition"}, logging...)

// logging are functions that warn of odd arguments. log_min_messages lets that through
// to the log as it comes from PostgreSQL, whatever the client wants to hear.
var logging = []string{"intervaltypmodin", "pg_tablespace_databases", "timestamptypmodin", "timestamptztypmodin", "timetypmodin", "timetztypmodin"}

// The reviewed verdicts, as they were handed over, and the tables in the binary
// say the same, row by row, but for those that were tightened.
func TestTheEmbeddedTablesSayWhatWasReviewed(t *testing.T) {
	rows, err := tsv(functionsTSV, 7)
	require.NoError(t, err)
	embedded := map[string][]string{}
	for _, r := range rows {
		require.Nil(t, embedded[r[0]], "%s stands twice", r[0])
		if strings.HasPrefix(r[0], "information_schema.") { // looked at later: pure functions of the standard's views
			require.Equal(t, "safe", r[1])
			continue
		}
		embedded[r[0]] = r
	}
	reviewed := corpusLines(t, "pg_functions.tsv", 1)
	require.Len(t, reviewed, len(embedded))
	for _, line := range reviewed {
		r := strings.Split(line, "\t") // schema, name, verdict, reason, volatility, versions
		require.Len(t, r, 6, line)
		require.Equal(t, "pg_catalog", r[0])
		require.NotNil(t, embedded[r[1]], r[1])
		if slices.Contains(tightened, r[1]) {
			require.Equal(t, []string{"safe", "strict"}, []string{r[2], embedded[r[1]][1]}, line)
			continue
		}
		require.Equal(t, r[1:], embedded[r[1]][:5], line)
	}

	extensions, err := tsv(extensionFunctionsTSV, 5)
	require.NoError(t, err)
	reviewed = corpusLines(t, "pg_ext_functions.tsv", 1)
	require.Len(t, reviewed, len(extensions))
	for i, line := range reviewed {
		require.Equal(t, line, strings.Join(extensions[i], "\t"))
	}
}

// What later versions made callable as a column, beside the reviewed list of
// PostgreSQL 15.
var newAttributes = map[string]string{
	"array_shuffle": "16", "random_normal": "16", "pg_stat_get_backend_subxact": "16", "pg_stat_get_xact_tuples_newpage_updated": "16",
	"binary_upgrade_logical_slot_has_caught_up": "17", "xmltext": "17",
	"uuidv7": "18", "pg_get_sequence_data": "18", "pg_restore_relation_stats": "18", "pg_restore_attribute_stats": "18",
	"pg_stat_get_backend_io": "18", "pg_stat_get_backend_wal": "18", "pg_stat_reset_backend_stats": "18",
}

// The reviewed list is a lower bound: the servers know more, and
// current_setting is safe by its argument, which a column hides.
var moreAttributes = []string{"current_setting", "pg_get_function_sqlbody", "pg_get_functiondef", "pg_replication_origin_oid", "pg_tablespace_location", "plpgsql_inline_handler",
	"jsonpath_in", "xml_in", "xml_is_well_formed", "xml_is_well_formed_content", "xml_is_well_formed_document", "xml_out", "xml_send", "xmlagg", "xmlcomment"}

func TestTheAttributeTableIsTheReviewedList(t *testing.T) {
	rows, err := tsv(functionsTSV, 7)
	require.NoError(t, err)
	of15 := slices.Concat(corpusLines(t, "pg_attr_callable_functions.txt", 0), moreAttributes, logging)
	require.Greater(t, len(of15), 100)
	for _, r := range rows {
		since := newAttributes[r[0]]
		if slices.Contains(of15, r[0]) {
			since = "15"
		}
		first, _, _ := strings.Cut(r[5], ",")
		require.Equal(t, since, first, r[0])
	}
}

// Every name of the table, called in every way a name can be called, on every
// version: safe only where the verdict says so and the version has it.
func TestEveryNameOfTheTableIsCalledAsItsVerdictSays(t *testing.T) {
	rows, err := tsv(functionsTSV, 7)
	require.NoError(t, err)
	for _, major := range []int{0, 15, 16, 17, 18} {
		tb, err := newTables(Config{ServerMajor: major})
		require.NoError(t, err)
		for _, r := range rows {
			v, err := parseVersions(r[4])
			require.NoError(t, err)
			names := []string{`"` + r[0] + `"`, `pg_catalog."` + r[0] + `"`}
			if name, ok := strings.CutPrefix(r[0], "information_schema."); ok {
				names = []string{"information_schema." + name}
			}
			quoted := names[0]
			want := r[1] == "safe" && v.in(major) && !strings.HasPrefix(r[2], "setting_") && !strings.HasPrefix(r[0], "jsonb_path_") && !strings.Contains(r[0], "_populate_")
			forms, err := parseForms(r[6], v)
			require.NoError(t, err)
			require.NotEmpty(t, forms, r[0])
			for _, f := range forms {
				if major != 0 && !f.versions.in(major) {
					continue
				}
				for _, call := range formCalls(&f) {
					for _, name := range names {
						c := mustClassify(t, tb, "SELECT "+name+call)
						if major == 0 && f.versions != allVersions {
							require.False(t, c.SafeRead && !want, name+call)
							continue
						}
						require.Equal(t, want, c.SafeRead, "%d: %s%s", major, name, call)
						require.Equal(t, v.in(major), slices.Contains(c.Functions, r[0]), "%d: %s%s", major, name, call)
					}
				}
			}
			for _, call := range []string{"(no_name_of_any => 1)", "(" + strings.Repeat("1, ", 20) + "no_name_of_any => 1)", "(1) WITHIN GROUP (ORDER BY 1, 2, 3)"} {
				c := mustClassify(t, tb, "SELECT "+quoted+call)
				if len(names) == 1 {
					require.Contains(t, c.Functions, r[0], "%d: %s", major, call)
				} else {
					require.Contains(t, c.Functions, "public."+r[0], "%d: %s", major, call)
				}
				require.Contains(t, c.RiskSignals, SignalUnknownFunction, "%d: %s%s", major, quoted, call)
			}
			if len(names) == 1 {
				continue
			}
			for _, call := range []string{"public." + quoted + "(1)", "other." + quoted + "()", "information_schema." + quoted + "()"} {
				require.False(t, mustClassify(t, tb, "SELECT "+call).SafeRead, "%d: %s", major, call)
			}
		}
	}
}

func TestEveryAttributeOfTheTableIsACallOnItsVersions(t *testing.T) {
	rows, err := tsv(functionsTSV, 7)
	require.NoError(t, err)
	for _, major := range []int{0, 15, 16, 17, 18} {
		tb, err := newTables(Config{ServerMajor: major})
		require.NoError(t, err)
		for _, r := range rows {
			if r[5] == "" {
				continue
			}
			v, err := parseVersions(r[5])
			require.NoError(t, err)
			callable := major == 0 || v.in(major)
			for _, sql := range []string{`SELECT t."` + r[0] + `" FROM t`, `SELECT (t)."` + r[0] + `" FROM t`, `SELECT a[1]."` + r[0] + `" FROM t`} {
				require.Equal(t, !callable, mustClassify(t, tb, sql).SafeRead, "%d: %s", major, sql)
			}
		}
	}
}

func TestNoFunctionOfAnExtensionIsSafe(t *testing.T) {
	tb := newTestTables(t, Config{})
	rows, err := tsv(extensionFunctionsTSV, 5)
	require.NoError(t, err)
	for _, r := range rows {
		if tb.builtins.functions[r[1]] != nil {
			continue // a name that PostgreSQL took over from its extension
		}
		for _, schema := range []string{"", "pg_catalog.", "public.", "ext."} {
			c := mustClassify(t, tb, `SELECT `+schema+`"`+r[1]+`"(1)`)
			require.Contains(t, c.RiskSignals, SignalUnknownFunction, "%s%s", schema, r[1])
			require.Equal(t, r[3] == "forbidden", floorAmong(c.RiskSignals), "%s: %v", r[1], c.RiskSignals)
		}
	}
}

func floorAmong(signals []string) bool {
	return slices.ContainsFunc(signals, func(s string) bool { return severities[s] == SeverityFloor })
}
