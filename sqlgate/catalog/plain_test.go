package catalog_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"writegate/sqlgate/classify"
)

// plainTypes are types of which nothing runs code of the users'; and others, which would.
const plainTypes = `
CREATE TYPE color AS ENUM ('red', 'green');
CREATE DOMAIN nick AS text;
CREATE DOMAIN wanted AS int NOT NULL DEFAULT 1;
CREATE TYPE spans AS RANGE (SUBTYPE = float8);
CREATE TYPE words AS RANGE (SUBTYPE = text, COLLATION = "C");
CREATE TYPE place AS (name text, at inet, shade color, known nick, stay spans, tags text[], shades color[], notes jsonb);
CREATE DOMAIN hue AS color;

CREATE FUNCTION ran(anyelement) RETURNS boolean LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''a trap''; END';
CREATE FUNCTION ran_text(text) RETURNS text LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''a trap''; END';
CREATE DOMAIN checked AS text CHECK (ran(VALUE));
CREATE DOMAIN over_checked AS checked;
CREATE DOMAIN checked_list AS text[] CHECK (ran(VALUE));
CREATE DOMAIN bounded AS int CHECK (VALUE > 0);
CREATE DOMAIN document AS xml;
CREATE DOMAIN route AS jsonpath;
CREATE DOMAIN whereabouts AS regclass;
CREATE TYPE holder AS (a int, b checked);
CREATE TYPE nested AS (a place);
CREATE TYPE spoken AS (a text COLLATE "und-x-icu");
CREATE DOMAIN spoken_text AS text COLLATE "und-x-icu";
CREATE TYPE cast_color AS ENUM ('red');
CREATE FUNCTION to_color(text) RETURNS cast_color LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''a trap''; END';
CREATE CAST (text AS cast_color) WITH FUNCTION to_color(text) AS IMPLICIT;
CREATE TYPE equal_color AS ENUM ('red');
CREATE FUNCTION equal_colors(equal_color, equal_color) RETURNS boolean LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''a trap''; END';
CREATE OPERATOR = (LEFTARG = equal_color, RIGHTARG = equal_color, FUNCTION = equal_colors);
CREATE TYPE list_color AS ENUM ('red');
CREATE FUNCTION equal_lists(list_color[], list_color[]) RETURNS boolean LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''a trap''; END';
CREATE OPERATOR = (LEFTARG = list_color[], RIGHTARG = list_color[], FUNCTION = equal_lists);
CREATE TYPE sorted_color AS ENUM ('red', 'green');
CREATE FUNCTION sort_colors(sorted_color, sorted_color) RETURNS int LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''a trap''; END';
CREATE OPERATOR CLASS sorted_colors DEFAULT FOR TYPE sorted_color USING btree AS OPERATOR 1 < (anyenum, anyenum), OPERATOR 2 <= (anyenum, anyenum), OPERATOR 3 = (anyenum, anyenum), OPERATOR 4 >= (anyenum, anyenum), OPERATOR 5 > (anyenum, anyenum), FUNCTION 1 sort_colors(sorted_color, sorted_color);
CREATE FUNCTION distance(float8, float8) RETURNS float8 LANGUAGE sql IMMUTABLE AS 'SELECT 1.0::float8';
CREATE TYPE far AS RANGE (SUBTYPE = float8, SUBTYPE_DIFF = distance);
CREATE TABLE things (id int PRIMARY KEY, shade color, tone hue, spot place);
CREATE VIEW reds AS SELECT id FROM things WHERE shade = 'red';
CREATE VIEW odd_reds AS SELECT 'red'::equal_color AS c FROM things;
CREATE SCHEMA elsewhere;
CREATE TYPE elsewhere.color AS ENUM ('red');
CREATE DOMAIN "dotted.name" AS text;
INSERT INTO things VALUES (1, 'red', 'red', ROW('a', NULL, 'red', 'n', NULL, NULL, NULL, NULL)), (2, 'green', 'green', NULL);
`

// What is judged by a plain type is a safe read, and what is none as it was; a server runs all
// that is judged safe without meeting a trap.
func TestATypeWithoutCodeOfTheUsersIsPlain(t *testing.T) {
	s := newServer(t, plainTypes)
	snapshot := s.snapshot()
	judge := func(sql string) classify.Classification {
		c, err := s.classifier.Classify(t.Context(), sql)
		require.NoError(t, err, sql)
		require.False(t, c.SafeRead, "%s: by its text alone", sql)
		if c.Plain == nil || !snapshot.Plain(c.Types) {
			return c
		}
		plain := c.Types
		c = c.WithPlainTypes()
		if found, _ := snapshot.Resolve(&c, nil, false, s.classifier.Keys(), plain); found != nil {
			c = c.WithBeside(found.Beside)
		}
		return c
	}
	for _, sql := range []string{
		"SELECT 'red'::color", "SELECT 'red'::public.color = 'green'", "SELECT '{red}'::color[]", "SELECT CAST('x' AS nick)", "SELECT '1'::wanted", "SELECT '[1,2]'::spans", "SELECT '{\"[1,2]\"}'::spans[]", "SELECT '{[1,2]}'::spans_multirange",
		"SELECT '[a,b]'::words @> 'ab'::text", "SELECT ROW('a', NULL, 'red', 'n', NULL, NULL, NULL, NULL)::place", "SELECT json_populate_record(NULL::place, '{\"shade\":\"red\"}')", "SELECT 'red'::hue::text", "SELECT id FROM things WHERE shade = 'red'::color ORDER BY shade",
		"SELECT enum_range(NULL::color)", "SELECT max(shade), count(DISTINCT tone) FROM things WHERE shade IN ('red'::color, 'green'::color) GROUP BY spot", "SELECT x.shade FROM jsonb_to_recordset('[{\"shade\":\"red\"}]') AS x(shade color)", "EXPLAIN SELECT 'red'::color",
		"SELECT id FROM things WHERE shade = ANY ('{red}'::color[]) UNION SELECT 1 WHERE 'x'::nick = 'y'",
	} {
		c := judge(sql)
		require.True(t, c.SafeRead, "%s: %v", sql, c.Signals)
		require.NotEmpty(t, c.Functions, "it stays in the facts: %s", sql)
		require.Equal(t, classify.Version, c.ClassificationVersion)
		s.run(sql)
	}
	for _, sql := range []string{
		"SELECT 'x'::checked", "SELECT 'x'::over_checked", "SELECT '{x}'::checked_list", "SELECT '1'::bounded", "SELECT '<a/>'::document", "SELECT '$'::route", "SELECT 'things'::whereabouts", "SELECT '(1,x)'::holder", "SELECT NULL::nested", "SELECT '(x)'::spoken", "SELECT 'x'::spoken_text",
		"SELECT 'red'::text::cast_color", "SELECT 'red'::equal_color = 'red'", "SELECT '{red}'::list_color[] = '{red}'", "SELECT 'red'::sorted_color ORDER BY 1", "SELECT '[1,2]'::far", "SELECT 'red'::elsewhere.color", "SELECT 'x'::\"dotted.name\"", "SELECT NULL::things", "SELECT 'red'::nothing",
		"SELECT 'red'::color, 'x'::checked", "SELECT 'red'::color, ran(1)", "SELECT color('red')", "SELECT 'red'::color, id FROM odd_reds", "SELECT '{red}'::_color", "SELECT json_populate_record(things, '{}') FROM things",
	} {
		c := judge(sql)
		require.False(t, c.SafeRead, sql)
		require.Contains(t, c.RiskSignals, classify.SignalUnknownFunction, sql)
	}
	for sql, want := range map[string]string{"INSERT INTO things (id, shade) VALUES (3, 'red'::color)": classify.ClassWrite, "UPDATE things SET shade = 'red'::color WHERE id = 1": classify.ClassWrite} {
		c := judge(sql)
		require.Equal(t, want, c.Class, sql)
		require.Empty(t, c.RiskSignals, sql)
	}
	for _, sql := range []string{"CREATE TABLE other (a color)", "CREATE CAST (color AS int) WITHOUT FUNCTION", "ALTER TABLE things ALTER shade TYPE color"} {
		c := judge(sql)
		require.Contains(t, c.RiskSignals, classify.SignalUnknownFunction, "what defines something: %s", sql)
	}
	c, err := s.classifier.Classify(t.Context(), "SELECT id FROM reds")
	require.NoError(t, err)
	found, d := snapshot.Resolve(&c, nil, false, s.classifier.Keys(), nil)
	require.NotNil(t, found)
	require.True(t, c.WithBeside(found.Beside).SafeRead, "a view whose stored text casts to one")
	require.Len(t, d.Types, 1, "by which it is compared")
	require.Len(t, strings.Split(d.Hashes, "\n"), len(d.OIDs)+1)
}
