package pgexec

import (
	"crypto/sha256"
	"encoding/binary"
	"sync"
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
