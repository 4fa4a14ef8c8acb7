package policy

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"text/template"
)

// StartingName is the policy that an installation begins with unless told
// another name.
const StartingName = "core-write-gate"

// Starting is the document that `gate policy init` writes, as version 1.0.0 of
// the given name ("" is StartingName): reads pass, ordinary writes and schema
// changes ask for an approval, everything else is blocked. The name is put in
// as it is; Load judges it.
func Starting(name string) []byte {
	if name == "" {
		name = StartingName
	}
	return []byte(strings.Replace(startingDocument, "name: "+StartingName, "name: "+name, 1))
}

// Sample is the policy of the demonstration: a shop with customers, orders and
// order items.
func Sample() []byte { return append([]byte(nil), sampleDocument...) }

// A StartingTable is a table that a first policy is to name.
type StartingTable struct {
	Schema, Name string
	Key          []string // columns of its primary key
	Column       string   // one of its columns, for a test where it has no key
}

// mostStartingTables is how many a first policy names one by one; where there are more it names schemas.
const mostStartingTables = 500

// startingName is a name that stands in a policy as it is: a pattern without a star or another
// dot, and a line of its comments.
var startingName = regexp.MustCompile(`^[\p{L}_][\p{L}\p{N}_$]{0,62}$`)

// notOfName is what the name of a policy can't have.
var notOfName = regexp.MustCompile(`[^a-z0-9]+`)

var tablesTemplate = template.Must(template.New("").Parse(tablesDocument))

// StartingFor is a first policy for the tables of a database, as version 1.0.0: each write of
// them asks a person, and everything else is blocked. A table whose name can't stand in a
// policy is left out, and so blocked. The error says that none is left.
func StartingFor(database string, tables []StartingTable) (document []byte, named int, err error) {
	type line struct{ Pattern, Key string }
	type schema struct {
		Name, List string
		Tables     []line
	}
	var schemas []schema
	var example *StartingTable
	each := len(tables) <= mostStartingTables
	for i := range tables {
		t := &tables[i]
		if !startingName.MatchString(t.Schema) || !startingName.MatchString(t.Name) {
			continue
		}
		named++
		if example == nil || len(example.Key) == 0 && len(t.Key) > 0 {
			example = t
		}
		if len(schemas) == 0 || schemas[len(schemas)-1].Name != t.Schema {
			schemas = append(schemas, schema{Name: t.Schema, List: fmt.Sprintf("schema_%d", len(schemas)+1)})
			if listPattern.MatchString(t.Schema) && t.Schema != "tables" && !strings.HasPrefix(t.Schema, "schema_") {
				schemas[len(schemas)-1].List = t.Schema
			}
		}
		of := &schemas[len(schemas)-1]
		switch {
		case each:
			key := "no primary key"
			if len(t.Key) > 0 && !slices.ContainsFunc(t.Key, func(c string) bool { return !startingName.MatchString(c) }) {
				key = "key: " + strings.Join(t.Key, ", ")
			}
			of.Tables = append(of.Tables, line{strconv.Quote(t.Schema + "." + t.Name), key})
		case len(of.Tables) == 0:
			of.Tables = []line{{strconv.Quote(t.Schema + ".*"), "all of its tables, being so many"}}
		}
	}
	if named == 0 {
		return nil, 0, errors.New("there is no table whose name can stand in a policy")
	}
	column := "id"
	for _, c := range append(slices.Clone(example.Key), example.Column) {
		if startingName.MatchString(c) {
			column = c
			break
		}
	}
	name := strings.Trim(notOfName.ReplaceAllString(strings.ToLower(database), "-"), "-0123456789")
	if name = strings.TrimRight(name[:min(len(name), 58)], "-"); name == "" {
		name = "first"
	}
	at := `"` + example.Schema + `"."` + example.Name + `"`
	var b bytes.Buffer
	err = tablesTemplate.Execute(&b, map[string]any{
		"Name": name + "-gate", "Schemas": schemas, "Example": strconv.Quote(example.Schema + "." + example.Name),
		"Read": strconv.Quote("SELECT * FROM " + at), "Insert": strconv.Quote("INSERT INTO " + at + " DEFAULT VALUES"),
		"Delete": strconv.Quote("DELETE FROM " + at + ` WHERE "` + column + `" = '1'`), "DeleteAll": strconv.Quote("DELETE FROM " + at), "Drop": strconv.Quote("DROP TABLE " + at),
	})
	return b.Bytes(), named, err
}
