package event

import (
	"fmt"
	"slices"
	"strings"
)

// A Kind tells what a Value holds.
type Kind uint8

// The kinds of the canonical encoding. There is no nil and no float: what is
// absent is left out, and a fraction is the text of its JSON.
const (
	KindBool Kind = iota + 1
	KindInt
	KindString
	KindBytes
	KindList
	KindMap
)

var kindNames = [...]string{0: "invalid", KindBool: "bool", KindInt: "int", KindString: "string", KindBytes: "bytes", KindList: "list", KindMap: "map"}

// String is the kind's name, for messages.
func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return fmt.Sprintf("Kind(%d)", uint8(k))
}

// A Value is one value of a payload. The zero Value is invalid and is refused
// by the encoder. Values are immutable and may be shared.
type Value struct {
	kind Kind
	num  int64   // KindInt, and 0 or 1 for KindBool
	text string  // KindString and KindBytes
	kids Payload // KindMap, and KindList with empty keys
}

// A Field is one named value of a payload or of a map inside one.
type Field struct {
	Key   string
	Value Value
}

// A Payload is what an event type says beyond its context: fields with unique
// keys, sorted by the bytes of their keys.
type Payload []Field

// NewPayload sorts fields into a payload. Two fields of one key stay and are
// refused by the encoder: a payload never drops what it was given.
func NewPayload(fields ...Field) Payload {
	p := append(make(Payload, 0, len(fields)), fields...)
	slices.SortStableFunc(p, func(a, b Field) int { return strings.Compare(a.Key, b.Key) })
	return p
}

// Size is about how many bytes the payload takes in a record: its texts, and 8 for each field.
func (p Payload) Size() (n int) {
	for i := range p {
		n += 8 + len(p[i].Key) + len(p[i].Value.text) + p[i].Value.kids.Size()
	}
	return n
}

// Get finds the value under key.
func (p Payload) Get(key string) (Value, bool) {
	i, ok := slices.BinarySearchFunc(p, key, func(f Field, k string) int { return strings.Compare(f.Key, k) })
	if !ok {
		return Value{}, false
	}
	return p[i].Value, true
}

// Bool makes a value that is true or false.
func Bool(b bool) Value {
	if b {
		return Value{kind: KindBool, num: 1}
	}
	return Value{kind: KindBool}
}

// Int makes a whole number.
func Int(n int64) Value { return Value{kind: KindInt, num: n} }

// String makes a text, which has to be valid UTF-8.
func String(s string) Value { return Value{kind: KindString, text: s} }

// Bytes makes a byte string from a copy of b.
func Bytes(b []byte) Value { return Value{kind: KindBytes, text: string(b)} }

// List makes a list.
func List(items ...Value) Value {
	kids := make(Payload, len(items))
	for i, v := range items {
		kids[i].Value = v
	}
	return Value{kind: KindList, kids: kids}
}

// Strings makes a list of texts.
func Strings(items []string) Value {
	kids := make(Payload, len(items))
	for i, s := range items {
		kids[i].Value = String(s)
	}
	return Value{kind: KindList, kids: kids}
}

// Map makes a map of the fields, in any order.
func Map(fields ...Field) Value { return Value{kind: KindMap, kids: NewPayload(fields...)} }

// mapOf makes a map of fields that are sorted already.
func mapOf(p Payload) Value { return Value{kind: KindMap, kids: p} }

// Kind tells what v holds; 0 for the zero Value.
func (v Value) Kind() Kind { return v.kind }

// AsBool gives a bool; ok is false when v is of another kind, as in all accessors.
func (v Value) AsBool() (b, ok bool) { return v.num != 0, v.kind == KindBool }

// AsInt gives a whole number.
func (v Value) AsInt() (n int64, ok bool) {
	if v.kind != KindInt {
		return 0, false
	}
	return v.num, true
}

// AsString gives a text.
func (v Value) AsString() (s string, ok bool) {
	if v.kind != KindString {
		return "", false
	}
	return v.text, true
}

// AsBytes gives a copy of a byte string, never nil when ok.
func (v Value) AsBytes() (b []byte, ok bool) {
	if v.kind != KindBytes {
		return nil, false
	}
	return append([]byte{}, v.text...), true
}

// AsMap gives the fields of a map. The caller must not change them.
func (v Value) AsMap() (p Payload, ok bool) {
	if v.kind != KindMap {
		return nil, false
	}
	return v.kids, true
}

// AsList gives the items of a list.
func (v Value) AsList() (items []Value, ok bool) {
	if v.kind != KindList {
		return nil, false
	}
	items = make([]Value, len(v.kids))
	for i := range v.kids {
		items[i] = v.kids[i].Value
	}
	return items, true
}
