package classify

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The names that the grammar makes of words, with what may stand behind them, and
// others that are special in one place. Of those that are no type of pg_catalog
// the trap server has a domain of the same name.
var typeSpellings = []string{
	"int", "integer", "smallint", "bigint", "real", "float", "float(1)", "float(53)", "double precision", "decimal", "decimal(5)", "decimal(5, 2)", "dec", "dec(5,2)", "numeric",
	"numeric(5,-2)", "boolean", "bit", "bit(3)", "bit varying", "bit varying(3)", "character", "character(3)", "char", "char(1)", "char varying", "char varying(3)",
	"character varying", "character varying(3)", "national character", "national character(3)", "national char", "national char varying(3)", "national character varying",
	"nchar", "nchar(3)", "nchar varying", "nchar varying(3)", "varchar", "varchar(3)", "text", "name", "json", "jsonb", "xml", "money", "oid", "record", "unknown", "any", "void",
	"timestamp", "timestamp(3)", "timestamp with time zone", "timestamp(3) with time zone", "timestamp without time zone", "time", "time(3)", "time with time zone",
	"time(3) without time zone", "timestamptz", "timestamptz(3)", "timetz", "date", "interval", "interval(3)", "interval year", "interval month", "interval day", "interval hour",
	"interval minute", "interval second", "interval second(3)", "interval year to month", "interval day to hour", "interval day to second(3)", "interval minute to second",
	"serial", "serial2", "serial4", "serial8", "smallserial", "bigserial", "serial(1)", "int4", "int8", "int2", "float4", "float8", "bool", "bpchar", "varbit", "regclass", "uuid",
	"bytea", "_int4", "_text", "_serial", "cstring", "trigger", "internal", "anyelement", "datetime", "nvarchar(3)", "number", "string", "pg_class", "setof", "row", "array", "path",
	"int4range", "inet", "year", "json_array", "json_object", "system_user", "current_user", "user", "coalesce", "precision", "varying", "national", "zone", "double",
}

// variants writes a type's name in every way it can be written.
func typeVariants(name string) []string {
	word, rest, _ := strings.Cut(name, "(")
	if rest != "" {
		rest = "(" + rest
	}
	quoted := `"` + strings.TrimSpace(word) + `"`
	return []string{
		name, strings.ToUpper(name), quoted, quoted + rest, `"` + strings.ToUpper(word) + `"`, "pg_catalog." + name, "pg_catalog." + quoted + rest, "public." + name, "public." + quoted,
		name + "[]", name + "[3][]", name + " ARRAY", name + " ARRAY[3]", quoted + "[]", "pg_catalog." + quoted + "[]", "SETOF " + name, name + "%TYPE", "t." + word + "%TYPE",
		`"_` + strings.TrimSpace(word) + `"`, "U&" + quoted,
	}
}

// Where a type stands in a read, and where a statement makes a column, an
// attribute or a domain zz of one.
var (
	typePlaces = []string{
		"SELECT '1'::@", "SELECT CAST('1' AS @)", "SELECT @ '1'", "SELECT NULL::@", "SELECT $1::@", "SELECT @('1')", "SELECT ARRAY[]::@[]", "SELECT a::@ FROM t",
		"SELECT x.a FROM json_to_record('{\"a\": \"1\"}') AS x(a @)", "SELECT a FROM XMLTABLE('/a' PASSING xml '<a>1</a>' COLUMNS a @ PATH '.') x",
		"SELECT xmlserialize(CONTENT xml '<a/>' AS @)", "SELECT json_object('a': 1 RETURNING @)", "SELECT json_array(1 RETURNING @)", "SELECT json_arrayagg(a RETURNING @) FROM t",
		"SELECT '1'::int::@", "SELECT 1 WHERE '1'::@ IS NULL", "SELECT a FROM t ORDER BY a::@", "VALUES ('1'::@)", "WITH x AS (SELECT '1'::@ AS y) SELECT y FROM x",
	}
	zzPlaces = []string{
		"CREATE TABLE n (zz @)", "CREATE TEMP TABLE n (b int, zz @ NOT NULL)", "ALTER TABLE s ADD COLUMN zz @", "ALTER TABLE changed ALTER zz TYPE @ USING NULL", "CREATE TYPE n AS (zz @)",
		"ALTER TYPE made ADD ATTRIBUTE zz @", "CREATE FOREIGN TABLE n (zz @) SERVER nowhere", "CREATE TABLE n AS SELECT NULL::@ AS zz", "CREATE VIEW n AS SELECT NULL::@ AS zz",
		"CREATE DOMAIN zz AS @",
	}
)

// Wherever a type stands, in whatever spelling: what counts as built in is built
// in for the server, and what it finds among the users' is named as theirs. The
// places take turns.
func TestEveryTypeNameIsWhatTheServerSays(t *testing.T) {
	s := newTrapServer(t)
	s.query("CREATE FOREIGN DATA WRAPPER nothing; CREATE SERVER nowhere FOREIGN DATA WRAPPER nothing")
	tb := newTestTables(t, Config{ServerMajor: s.major})
	var spellings []string
	for _, name := range typeSpellings {
		spellings = append(spellings, typeVariants(name)...)
	}
	slices.Sort(spellings)
	spellings = slices.Compact(spellings)
	turns := 12
	if os.Getenv(allNames) != "" {
		turns = 1
	}
	taken := 0
	for i, spelling := range spellings {
		for j, place := range typePlaces {
			if (i+j)%turns != 0 {
				continue
			}
			sql := strings.ReplaceAll(place, "@", spelling)
			if _, was := s.watch(tb, sql); was {
				taken++
			}
		}
	}
	require.Greater(t, taken, 300)

	strict := map[string]bool{}
	for i, spelling := range spellings {
		for j, place := range zzPlaces {
			if (i+j)%turns != 0 && !serials[strings.Trim(spelling, `"`)] {
				continue
			}
			sql := strings.ReplaceAll(place, "@", spelling)
			c, f := classifyText(tb, sql)
			if f != nil {
				continue // a server may still take it, but not through us
			}
			users, ok := s.typeOfZZ(sql)
			switch {
			case ok && users && !c.UserTypes:
				t.Errorf("%d: %s: the type is the users' and counts as built in", s.major, sql)
			case ok && users && len(c.Functions) == 0:
				t.Errorf("%d: %s: the users' type is in no fact", s.major, sql)
			case ok && !users && c.UserTypes:
				strict[spelling] = true
			}
		}
	}
	for spelling := range strict {
		if !strings.HasSuffix(spelling, "%TYPE") {
			t.Errorf("%d: %s is built in and counts as the users'", s.major, spelling)
		}
	}
}

// typeOfZZ runs a statement that makes zz and tells whether zz is of a type of the
// users'; ok is false where the server refuses.
func (s *trapServer) typeOfZZ(sql string) (users, ok bool) {
	s.t.Helper()
	if _, err := s.conn.Exec(s.t.Context(), "BEGIN;"+sql).ReadAll(); err == nil {
		row := s.query(`SELECT max(type) >= 16384 FROM (
			SELECT atttypid AS type FROM pg_attribute WHERE attname = 'zz' AND xmin = pg_current_xact_id()::xid
			UNION ALL SELECT typbasetype FROM pg_type WHERE typname = 'zz' AND xmin = pg_current_xact_id()::xid) x`)
		users, ok = row[0][0] == "t", row[0][0] != ""
	}
	_, err := s.conn.Exec(s.t.Context(), "ROLLBACK").ReadAll()
	require.NoError(s.t, err)
	return users, ok
}
