package pgexec

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"
)

// A valueKind is how the text of a value becomes JSON.
type valueKind uint8

const (
	asString valueKind = iota // PostgreSQL's own text form
	asBool
	asNumber // whole numbers that a double holds exactly
	asInt8
	asFloat
	asJSON
	asArray
)

// Types with a form of their own, by OID.
const (
	oidBool, oidInt8, oidInt2, oidInt4, oidOID = 16, 20, 21, 23, 26
	oidFloat4, oidFloat8, oidJSON, oidJSONB    = 700, 701, 114, 3802
	oidBox, oidNumeric                         = 603, 1700
	oidText, oidBpchar, oidVarchar             = 25, 1042, 1043
	oidUnknown, oidOIDArray                    = 705, 1028
)

var kinds = map[uint32]valueKind{
	oidBool: asBool, oidInt2: asNumber, oidInt4: asNumber, oidOID: asNumber, oidInt8: asInt8,
	oidFloat4: asFloat, oidFloat8: asFloat, oidJSON: asJSON, oidJSONB: asJSON,
}

// A typeInfo is what the mapping needs to know of a type.
type typeInfo struct {
	name  string // as columns show it
	kind  valueKind
	elem  *typeInfo // of an array
	delim byte      // between an array's elements
}

// builtin is the table of types with fixed OIDs.
var builtin = sync.OnceValue(func() map[uint32]*typeInfo {
	m := make(map[uint32]*typeInfo, len(builtinNames)+len(builtinArrays))
	for oid, name := range builtinNames {
		m[oid] = &typeInfo{name: name, kind: kinds[oid]}
	}
	for oid, elem := range builtinArrays {
		m[oid] = arrayOf(m[elem], delimiterOf(elem))
	}
	return m
})

// delimiterOf is the character between elements of an array of a built-in type.
func delimiterOf(elem uint32) byte {
	if elem == oidBox {
		return ';'
	}
	return ','
}

func arrayOf(elem *typeInfo, delim byte) *typeInfo {
	return &typeInfo{name: elem.name + "[]", kind: asArray, elem: elem, delim: delim}
}

// unknownType is what a type counts as that nobody knows: its text is a string.
func unknownType(oid uint32) *typeInfo {
	return &typeInfo{name: strconv.FormatUint(uint64(oid), 10)}
}

// mostTypes bounds the cache; a database with more types than this begins anew.
const mostTypes = 10_000

// A typeCache remembers the types of the database that are not built in. It is
// dropped after every definition, since an OID may then mean something else.
type typeCache struct {
	mu    sync.RWMutex
	types map[uint32]*typeInfo
	age   uint64 // grows with every forget
}

func (c *typeCache) find(oid uint32) (*typeInfo, bool) {
	if t, ok := builtin()[oid]; ok {
		return t, true
	}
	c.mu.RLock()
	defer c.mu.RUnlock()
	t, ok := c.types[oid]
	return t, ok
}

func (c *typeCache) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.types = nil
	c.age++
}

// Changes counts what the gate itself may have changed of the definitions in the database.
func (db *DB) Changes() uint64 { return db.types.generation() }

func (c *typeCache) generation() uint64 {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.age
}

// add keeps types that were looked up in a generation that still lasts.
func (c *typeCache) add(types map[uint32]*typeInfo, generation uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.age != generation {
		return
	}
	if c.types == nil || len(c.types)+len(types) > mostTypes {
		c.types = make(map[uint32]*typeInfo)
	}
	for oid, t := range types {
		c.types[oid] = t
	}
}

// typesSQL reads types with everything they are made of: elements of arrays,
// base types of domains.
const typesSQL = `WITH RECURSIVE t AS (
 SELECT p.oid, p.typname, p.typnamespace, p.typbasetype, p.typdelim,
  CASE WHEN p.typsubscript OPERATOR(pg_catalog.=) 'pg_catalog.array_subscript_handler'::pg_catalog.regproc AND p.typlen OPERATOR(pg_catalog.=) -1 THEN p.typelem ELSE 0 END AS elem
 FROM pg_catalog.pg_type AS p WHERE p.oid OPERATOR(pg_catalog.=) ANY ($1)
 UNION
 SELECT p.oid, p.typname, p.typnamespace, p.typbasetype, p.typdelim,
  CASE WHEN p.typsubscript OPERATOR(pg_catalog.=) 'pg_catalog.array_subscript_handler'::pg_catalog.regproc AND p.typlen OPERATOR(pg_catalog.=) -1 THEN p.typelem ELSE 0 END
 FROM t JOIN pg_catalog.pg_type AS p ON p.oid OPERATOR(pg_catalog.=) t.elem OR p.oid OPERATOR(pg_catalog.=) t.typbasetype)
SELECT t.oid, n.nspname, t.typname, t.elem, t.typbasetype, t.typdelim FROM t JOIN pg_catalog.pg_namespace AS n ON n.oid OPERATOR(pg_catalog.=) t.typnamespace`

// A typeRow is one row of typesSQL.
type typeRow struct {
	schema, name string
	elem, base   uint32
	delim        byte
}

// typeRows collects the answer of typesSQL.
type typeRows map[uint32]typeRow

func (typeRows) Fields([]Field) error { return nil }

func (m typeRows) Row(v [][]byte) error {
	if len(v) != 6 || len(v[5]) == 0 {
		return fmt.Errorf("%w: a row of pg_type", errProtocol)
	}
	oid, elem, base := parseOID(v[0]), parseOID(v[3]), parseOID(v[4])
	m[oid] = typeRow{schema: string(v[1]), name: string(v[2]), elem: elem, base: base, delim: v[5][0]}
	return nil
}

func parseOID(text []byte) uint32 {
	n, err := strconv.ParseUint(string(text), 10, 32)
	if err != nil {
		return 0 // no type has it
	}
	return uint32(n)
}

// resolve makes a typeInfo of the rows; depth guards against a catalogue that
// goes round in circles.
func (m typeRows) resolve(oid uint32, depth int) *typeInfo {
	if t, ok := builtin()[oid]; ok {
		return t
	}
	row, ok := m[oid]
	if !ok || depth > 20 {
		return unknownType(oid)
	}
	if row.elem != 0 {
		return arrayOf(m.resolve(row.elem, depth+1), m.delimiter(row))
	}
	t := &typeInfo{name: qualified(row)}
	if row.base != 0 { // a domain, met as an element: it is written as its base type is
		base := m.resolve(row.base, depth+1)
		t.kind, t.elem, t.delim = base.kind, base.elem, base.delim
	}
	return t
}

// delimiter is the element's, not the array's own.
func (m typeRows) delimiter(row typeRow) byte {
	if e, ok := m[row.elem]; ok {
		return e.delim
	}
	return delimiterOf(row.elem)
}

func qualified(row typeRow) string {
	if row.schema == "pg_catalog" {
		return row.name
	}
	return row.schema + "." + row.name
}

// lookUp asks the reader for types and keeps them. What cannot be had in time
// stays unknown, and its values strings.
func (db *DB) lookUp(ctx context.Context, oids []uint32) (map[uint32]*typeInfo, error) {
	generation := db.types.generation()
	l, err := db.reader.acquire(ctx)
	if err != nil {
		return nil, err
	}
	defer l.release()
	var list strings.Builder
	for i, oid := range oids {
		if i > 0 {
			list.WriteByte(',')
		}
		list.WriteString(strconv.FormatUint(uint64(oid), 10))
	}
	found := make(typeRows)
	q := &command{sql: typesSQL, oids: []uint32{oidOIDArray}, params: [][]byte{[]byte("{" + list.String() + "}")}, sink: found}
	refused, err := l.exchange(ctx, time.Now().Add(db.cfg.AcquireTimeout), segment{own("BEGIN READ ONLY"), q, own("ROLLBACK")})
	if err != nil {
		return nil, err
	}
	if refused != nil {
		l.broken = true
		return nil, refused
	}
	types := make(map[uint32]*typeInfo, len(oids))
	for _, oid := range oids {
		types[oid] = found.resolve(oid, 0)
	}
	db.types.add(types, generation)
	return types, nil
}
