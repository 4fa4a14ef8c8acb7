package classify

import (
	"crypto/sha256"
	_ "embed" // the tables below
	"encoding/hex"
	"fmt"
	"strings"
	"sync"
)

// The tables of what is built in come from real servers of all four versions;
// a function's verdict was given by people (design/classification.md part 8).
var (
	//go:embed data/functions.tsv
	functionsTSV string
	//go:embed data/extension_functions.tsv
	extensionFunctionsTSV string
	//go:embed data/names.tsv
	namesTSV string
	//go:embed data/versions.tsv
	versionsTSV string
)

// Versions of the grammar's module and tree.
const (
	PgQueryVersion = "v5.1.0"
	treeVersion    = 160001
)

// versions is a set of server majors, one bit for each from 15 on.
type versions uint8

const allVersions versions = 1<<4 - 1

// parseVersions reads a list such as "15,16".
func parseVersions(list string) (versions, error) {
	var v versions
	for part := range strings.SplitSeq(list, ",") {
		if len(part) != 2 || part < "15" || part > "18" {
			return 0, fmt.Errorf("embedded table: version %q", part)
		}
		v |= 1 << (part[1] - '5')
	}
	return v, nil
}

// in reports whether what has these versions is there on every server that the
// major may stand for: itself, or all four when it is not known.
func (v versions) in(major int) bool {
	if major == 0 {
		return v == allVersions
	}
	return v&(1<<(major-15)) != 0
}

// builtins is everything that depends on the server's major.
type builtins struct {
	functions  map[string]*function // of pg_catalog
	standard   map[string]*function // of information_schema
	attributes map[string]*function // what can be called as a column
	operators  map[string]bool      // of two operands
	prefixes   map[string]bool      // operators of one operand
	types      map[string]bool
	relations  map[string]bool
	sampling   map[string]bool
	opclasses  map[string]bool     // with their access method in front
	sets       map[string]bool     // functions that return sets on any version
	results    map[string][]string // the columns of what a function returns
}

// tables is everything a classification looks up. It is read-only.
type tables struct {
	schema     *schema
	builtins   *builtins
	extensions map[string]*function // by bare name
	catalog    map[string]*catalogRelation
	settings   map[string]bool // those that anybody may see
	searchPath string
	keyColumns map[string]bool
	engine     Engine
	walks      *sync.Pool

	otherLiterals []int // forms of literals that a server the text may reach reads otherwise
}

// newTables makes the tables for one configuration. An error is a setting that
// cannot be, or damaged embedded data.
func newTables(cfg Config) (*tables, error) {
	if m := cfg.ServerMajor; m != 0 && (m < 15 || m > 18) {
		return nil, fmt.Errorf("classify: server major %d is not one of 15 to 18", m)
	}
	path := cfg.SearchPath
	if path == "" {
		path = "public"
	}
	if strings.ContainsAny(path, ",\"$") {
		return nil, fmt.Errorf("classify: the search path must be one schema, not %q", path)
	}
	sc, err := newSchema(schemaTSV, enumsTSV)
	if err != nil {
		return nil, err
	}
	t := &tables{schema: sc, searchPath: path, keyColumns: map[string]bool{"id": true}}
	for _, c := range cfg.KeyColumns {
		t.keyColumns[c] = true
	}
	if t.builtins, err = newBuiltins(cfg.ServerMajor); err != nil {
		return nil, err
	}
	if t.extensions, err = newExtensions(); err != nil {
		return nil, err
	}
	c, err := catalogTables()
	if err != nil {
		return nil, err
	}
	t.catalog, t.settings = c.relations, c.settings
	if err := t.addVersions(versionsTSV, cfg.ServerMajor); err != nil {
		return nil, err
	}
	t.engine = Engine{PgQuery: PgQueryVersion, Grammar: treeVersion, Tables: tablesHash(), ServerMajor: cfg.ServerMajor}
	t.walks = &sync.Pool{New: func() any { return new(walk) }}
	return t, nil
}

// Tables names the embedded tables as Engine.Tables does.
func Tables() string { return tablesHash() }

// tablesHash names the embedded tables by the first 12 digits of their SHA-256.
var tablesHash = sync.OnceValue(func() string {
	h := sha256.New()
	for _, table := range []string{schemaTSV, enumsTSV, functionsTSV, extensionFunctionsTSV, namesTSV, catalogTSV, settingsTSV, versionsTSV} {
		h.Write([]byte(table))
	}
	return hex.EncodeToString(h.Sum(nil))[:12]
})

func newBuiltins(major int) (*builtins, error) {
	b := &builtins{
		functions: map[string]*function{}, standard: map[string]*function{}, attributes: map[string]*function{}, operators: map[string]bool{}, prefixes: map[string]bool{},
		types: map[string]bool{}, relations: map[string]bool{}, sampling: map[string]bool{}, opclasses: map[string]bool{}, sets: map[string]bool{}, results: map[string][]string{},
	}
	if err := b.addFunctions(major); err != nil {
		return nil, err
	}
	rows, err := tsv(namesTSV, 3)
	if err != nil {
		return nil, err
	}
	kinds := map[string]map[string]bool{"operator": b.operators, "prefix": b.prefixes, "type": b.types, "relation": b.relations, "sampling": b.sampling, "opclass": b.opclasses, "set": b.sets}
	for _, r := range rows {
		v, err := parseVersions(r[2])
		if err == nil && r[0] == "result" {
			if at := strings.LastIndexByte(r[1], '.'); at > 0 && v.in(major) {
				b.results[r[1][:at]] = append(b.results[r[1][:at]], r[1][at+1:])
			}
			continue
		}
		if err != nil || kinds[r[0]] == nil {
			return nil, fmt.Errorf("embedded table of names: %v: %w", r, err)
		}
		if v.in(major) || r[0] == "set" {
			kinds[r[0]][r[1]] = true
		}
	}
	for name, f := range b.functions {
		if b.types[name] && !b.relations[name] { // types of rows have no such cast
			f.forms = append(f.forms, form{kind: castForm, least: 1, most: 1, versions: allVersions})
		}
	}
	return b, nil
}

func (b *builtins) addFunctions(major int) error {
	rows, err := tsv(functionsTSV, 7)
	if err != nil {
		return err
	}
	for _, r := range rows {
		v, err := parseVersions(r[4])
		if err != nil {
			return err
		}
		f := newFunction(r[0], r[1], r[2])
		if f.forms, err = parseForms(r[6], v); err != nil {
			return err
		}
		switch name, standard := strings.CutPrefix(r[0], "information_schema."); {
		case !v.in(major):
		case standard:
			b.standard[name] = f
		default:
			b.functions[name] = f
		}
		// A name that only some versions have could be called as a column on
		// the one behind us, so not knowing the version counts them all.
		if r[5] != "" {
			if v, err = parseVersions(r[5]); err != nil {
				return err
			}
			if major == 0 || v.in(major) {
				b.attributes[r[0]] = f
			}
		}
	}
	return nil
}

func newExtensions() (map[string]*function, error) {
	rows, err := tsv(extensionFunctionsTSV, 5)
	if err != nil {
		return nil, err
	}
	all := map[string]*function{}
	for _, r := range rows {
		f := newExtensionFunction(r[1], r[3], r[4])
		if old := all[r[1]]; old == nil || len(f.signals) >= len(old.signals) {
			all[r[1]] = f
		}
	}
	return all, nil
}
