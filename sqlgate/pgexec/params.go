package pgexec

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"writegate/commands/fault"
)

// unbindable are the types below 10000 that no parameter can have: pseudo-types
// and the rows of catalogue tables. A test compares them with the server's own.
var unbindable = []uint32{
	32, 71, 75, 81, 83, 269, 325, 705, 1248, 2249, 2275, 2276, 2277, 2278, 2279, 2280, 2281, 2283, 2287, 2776, 2842, 2843, 3115, 3310, 3500, 3831, 3838,
	4066, 4537, 4538, 5077, 5078, 5079, 5080, 6101, 1263, 210, 270, 272, 273,
}

// bindable holds the built-in types that a parameter may have, by name; arrays
// under the name of their elements with [].
var bindable = sync.OnceValue(func() map[string]uint32 {
	m := make(map[string]uint32, len(builtinNames)+len(builtinArrays))
	for oid, t := range builtin() {
		m[t.name] = oid
	}
	for _, oid := range unbindable {
		delete(m, builtin()[oid].name)
	}
	return m
})

// BuiltinType gives the OID of a type that every server has, by the name in
// pg_type, and of arrays of it. A type that somebody made is none: its input
// function is not the server's own.
func BuiltinType(name string, array bool) (oid uint32, ok bool) {
	if array {
		name += "[]"
	}
	oid, ok = bindable()[name]
	return oid, ok
}

// namesRead are the built-in types whose input looks up what a name means in the
// database of the moment.
var namesRead = []string{"regproc", "regprocedure", "regoper", "regoperator", "regclass", "regtype", "regrole", "regnamespace", "regcollation", "regconfig", "regdictionary"}

// plainTypes are the types whose values the server reads by its own code alone.
var plainTypes = sync.OnceValue(func() map[uint32]bool {
	m := map[uint32]bool{0: true, oidUnknown: true} // those that the server infers
	for _, oid := range bindable() {
		m[oid] = true
	}
	for _, name := range namesRead {
		delete(m, bindable()[name])
		delete(m, bindable()[name+"[]"])
	}
	return m
})

// PlainType reports whether a parameter of the type is read by the server's own
// code alone, on every server from 15 to 18: it is built in, and no pseudo-type,
// no row of a catalogue and no name to be looked up. 0, which the server infers
// from the text, is one.
func PlainType(oid uint32) bool { return plainTypes()[oid] }

// A TypeName is how a type that is no PlainType is called.
type TypeName struct {
	Name  string // schema.name, as it is; an array has that of its elements
	Label string // as SQL says it, with [] behind an array's
}

// typeNamesSQL names types; an array has the name of its elements.
const typeNamesSQL = `SELECT p.oid, n.nspname, e.typname,
 pg_catalog.concat(pg_catalog.quote_ident(n.nspname), '.', pg_catalog.quote_ident(e.typname), CASE WHEN p.oid OPERATOR(pg_catalog.<>) e.oid THEN '[]' END) FROM pg_catalog.pg_type AS p
 JOIN pg_catalog.pg_type AS e ON e.oid OPERATOR(pg_catalog.=) CASE WHEN p.typsubscript OPERATOR(pg_catalog.=) 'pg_catalog.array_subscript_handler'::pg_catalog.regproc
  AND p.typlen OPERATOR(pg_catalog.=) -1 THEN p.typelem ELSE p.oid END
 JOIN pg_catalog.pg_namespace AS n ON n.oid OPERATOR(pg_catalog.=) e.typnamespace WHERE p.oid OPERATOR(pg_catalog.=) ANY ($1)`

// Types are the names of types that are no PlainType.
type Types struct {
	Server string // whose numbers they are: which server, since its last start; "" = every server's
	Names  map[uint32]TypeName
}

// TypeNames gives the names of those types that are no PlainType; a number that no
// type has is oid.N. It asks the database, with a text of its own, where its own table
// does not say.
func (db *DB) TypeNames(ctx context.Context, oids []uint32) (Types, error) {
	if names, list := knownTypes(oids); len(list) == 0 {
		return Types{Names: names}, nil
	}
	l, err := db.reader.acquire(ctx)
	if err != nil {
		return Types{}, err
	}
	defer l.release()
	return l.typesNamed(ctx, db.deadline(db.bound(Limits{})), oids)
}

// typesNamed is TypeNames as the server of one connection says. What is no answer is a fault.
func (l *lease) typesNamed(ctx context.Context, deadline time.Time, oids []uint32) (Types, error) {
	names, list := knownTypes(oids)
	if len(list) == 0 {
		return Types{Names: names}, nil
	}
	q := &command{sql: typeNamesSQL, oids: []uint32{oidOIDArray}, params: [][]byte{[]byte("{" + strings.Join(list, ",") + "}")}, sink: typeNames(names)}
	refused, err := l.exchange(ctx, deadline, segment{q})
	switch {
	case err != nil:
		return Types{}, connectFault(err)
	case refused != nil:
		l.broken = true
		return Types{}, fault.New(fault.DBUnavailable, "What types the parameters have could not be looked up, so nothing was executed. Send the request again later, and tell the operator if it stays.").
			With("sqlstate", refused.Code).Because(refused)
	}
	return Types{Server: l.life, Names: names}, nil
}

// knownTypes are the names that need no server, and the numbers of the types that do.
func knownTypes(oids []uint32) (names map[uint32]TypeName, list []string) {
	for _, oid := range oids {
		if PlainType(oid) || names[oid].Name != "" {
			continue
		}
		if names == nil {
			names = make(map[uint32]TypeName)
		}
		if t, ok := builtin()[oid]; ok {
			names[oid] = TypeName{"pg_catalog." + strings.TrimSuffix(t.name, "[]"), "pg_catalog." + t.name}
			continue
		}
		number := strconv.FormatUint(uint64(oid), 10)
		names[oid], list = TypeName{"oid." + number, "oid." + number}, append(list, number)
	}
	return names, list
}

// typeNames collects the answer of typeNamesSQL.
type typeNames map[uint32]TypeName

func (typeNames) Fields([]Field) error { return nil }

func (m typeNames) Row(v [][]byte) error {
	if len(v) != 4 {
		return fmt.Errorf("%w: a row of pg_type", errProtocol)
	}
	m[parseOID(v[0])] = TypeName{string(v[1]) + "." + string(v[2]), string(v[3])}
	return nil
}

// TypeLabel is a built-in type's name as people write it.
func TypeLabel(oid uint32) string {
	if t, ok := builtin()[oid]; ok {
		return t.name
	}
	return unknownType(oid).name
}

// TakesNumber reports whether a number's digits are a value of the type that
// means the number; TakesBoolean the same of true and false. 0 is a type that
// the server infers.
func TakesNumber(oid uint32) bool {
	switch oid {
	case oidInt2, oidInt4, oidInt8, oidFloat4, oidFloat8, oidNumeric, oidOID:
		return true
	}
	return takesText(oid)
}

// TakesBoolean is the like of TakesNumber for true and false.
func TakesBoolean(oid uint32) bool { return oid == oidBool || takesText(oid) }

func takesText(oid uint32) bool {
	return oid == 0 || oid == oidText || oid == oidVarchar || oid == oidBpchar
}

// ParamsDigest is what evidence keeps of parameters: SHA-256 over, for each, its
// type's OID and its format as four bytes each, its length as eight, all
// big-endian, and its bytes; NULL has the length 2^64-1 and no bytes.
func ParamsDigest(st *Statement) [32]byte {
	var buf []byte
	for i, value := range st.Params {
		oid, format := uint32(0), int16(0)
		if i < len(st.ParamOIDs) {
			oid = st.ParamOIDs[i]
		}
		if i < len(st.ParamFormats) {
			format = st.ParamFormats[i]
		}
		buf = binary.BigEndian.AppendUint32(buf, oid)
		buf = binary.BigEndian.AppendUint32(buf, uint32(format))
		if value == nil {
			buf = binary.BigEndian.AppendUint64(buf, ^uint64(0))
			continue
		}
		buf = binary.BigEndian.AppendUint64(buf, uint64(len(value)))
		buf = append(buf, value...)
	}
	return sha256.Sum256(buf)
}
