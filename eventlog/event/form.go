package event

import (
	"fmt"
	"math"
	"slices"
	"sync"
)

// A form describes a payload once for both directions: each event type walks
// its fields in the order of their keys, and the form either writes them or
// reads them. So what is written and what is read can't drift apart.
//
// Reading is strict: a missing, unknown, mistyped or out-of-range field is an
// error, and so is an optional field that is spelled out although it is zero,
// because the same fact has to have one payload alone.
type form struct {
	reading bool
	fields  Payload // what is written so far, or what is left to read
	err     error
}

// write collects the fields that describe puts out; n is a guess of their number.
func write(n int, describe func(*form)) Payload {
	f := form{fields: make(Payload, 0, n)}
	describe(&f)
	return f.fields
}

// read hands p's fields to describe and refuses what is left over.
func read(p Payload, describe func(*form)) error {
	f := forms.Get().(*form)
	*f = form{reading: true, fields: p}
	describe(f)
	err := f.end()
	*f = form{} // keeps nothing of p alive
	forms.Put(f)
	return err
}

// forms are those that read nothing now. A replay reads millions of payloads.
var forms = sync.Pool{New: func() any { return new(form) }}

func (f *form) end() error {
	if f.err == nil && len(f.fields) > 0 {
		f.err = fmt.Errorf("field %q is unknown or out of order", f.fields[0].Key)
	}
	return f.err
}

func (f *form) fail(key, format string, args ...any) {
	if f.err == nil {
		f.err = fmt.Errorf("field %q: "+format, append([]any{key}, args...)...)
	}
}

func (f *form) put(key string, v Value) { f.fields = append(f.fields, Field{Key: key, Value: v}) }

// next takes the field that must or may stand under key now.
func (f *form) next(key string, k Kind, optional bool) (Value, bool) {
	if f.err != nil {
		return Value{}, false
	}
	if len(f.fields) == 0 || f.fields[0].Key != key {
		if !optional {
			f.fail(key, "missing")
		}
		return Value{}, false
	}
	v := f.fields[0].Value
	if v.kind != k {
		f.fail(key, "is %s, not %s", v.kind, k)
		return Value{}, false
	}
	f.fields = f.fields[1:]
	return v, true
}

// spare refuses an optional field that says no more than its absence.
func (f *form) spare(key string, zero bool) {
	if zero {
		f.fail(key, "is spelled out although it is zero")
	}
}

// need and may are the two ways in which a field can be there.
const (
	need = false
	may  = true
)

func (f *form) str(key string, s *string, optional bool) {
	if !f.reading {
		if !optional || *s != "" {
			f.put(key, String(*s))
		}
		return
	}
	if v, ok := f.next(key, KindString, optional); ok {
		*s = v.text
		f.spare(key, optional && *s == "")
	}
}

func (f *form) flag(key string, b *bool, optional bool) {
	if !f.reading {
		if !optional || *b {
			f.put(key, Bool(*b))
		}
		return
	}
	if v, ok := f.next(key, KindBool, optional); ok {
		*b = v.num != 0
		f.spare(key, optional && !*b)
	}
}

// A whole is a Go type that holds a whole number of a payload.
type whole interface{ ~int | ~int64 | ~uint64 }

func num[T whole](f *form, key string, n *T, optional bool) {
	if !f.reading {
		if uint64(*n) > math.MaxInt64 && *n > 0 {
			f.put(key, Value{}) // refused by the encoder, not wrapped
			return
		}
		if !optional || *n != 0 {
			f.put(key, Int(int64(*n)))
		}
		return
	}
	v, ok := f.next(key, KindInt, optional)
	if !ok {
		return
	}
	*n = T(v.num)
	if int64(*n) != v.num || (*n < 0) != (v.num < 0) {
		f.fail(key, "%d is out of range", v.num)
	}
	f.spare(key, optional && *n == 0)
}

// bound is for an optional limit, where 0 is a limit and absence is none.
func bound(f *form, key string, n **int64) {
	if !f.reading {
		if *n != nil {
			f.put(key, Int(**n))
		}
		return
	}
	v, ok := f.next(key, KindInt, may)
	if !ok {
		return
	}
	if v.num < 0 {
		f.fail(key, "%d is out of range", v.num)
	}
	limit := v.num // and not v, which would then lie on the heap also where it is absent
	*n = &limit
}

func (f *form) hash(key string, h *[32]byte, optional bool) { fixed(f, key, h[:], optional) }

// fixed is for byte strings of one length; zero counts as absent where that is allowed.
func fixed(f *form, key string, b []byte, optional bool) {
	zero := func() bool { return !slices.ContainsFunc(b, func(c byte) bool { return c != 0 }) }
	if !f.reading {
		if !optional || !zero() {
			f.put(key, Bytes(b))
		}
		return
	}
	v, ok := f.next(key, KindBytes, optional)
	if !ok {
		return
	}
	if len(v.text) != len(b) {
		f.fail(key, "has %d bytes, not %d", len(v.text), len(b))
		return
	}
	copy(b, v.text)
	f.spare(key, optional && zero())
}

func (f *form) bytes(key string, b *[]byte, optional bool) {
	if !f.reading {
		if !optional || len(*b) > 0 {
			f.put(key, Bytes(*b))
		}
		return
	}
	if v, ok := f.next(key, KindBytes, optional); ok {
		*b = []byte(v.text)
		f.spare(key, optional && len(*b) == 0)
	}
}

func (f *form) strs(key string, list *[]string, optional bool) {
	if !f.reading {
		if !optional || len(*list) > 0 {
			f.put(key, Strings(*list))
		}
		return
	}
	v, ok := f.next(key, KindList, optional)
	if !ok {
		return
	}
	*list = make([]string, len(v.kids))
	for i := range v.kids {
		if v.kids[i].Value.kind != KindString {
			f.fail(key, "item %d is %s, not string", i, v.kids[i].Value.kind)
			return
		}
		(*list)[i] = v.kids[i].Value.text
	}
	f.spare(key, optional && len(*list) == 0)
}

// nums is a list of whole numbers.
func nums(f *form, key string, list *[]int, optional bool) {
	if !f.reading {
		if !optional || len(*list) > 0 {
			items := make([]Value, len(*list))
			for i, n := range *list {
				items[i] = Int(int64(n))
			}
			f.put(key, List(items...))
		}
		return
	}
	v, ok := f.next(key, KindList, optional)
	if !ok {
		return
	}
	*list = make([]int, len(v.kids))
	for i := range v.kids {
		if v.kids[i].Value.kind != KindInt {
			f.fail(key, "item %d is %s, not int", i, v.kids[i].Value.kind)
			return
		}
		(*list)[i] = int(v.kids[i].Value.num)
	}
	f.spare(key, optional && len(*list) == 0)
}

// dict is a map of texts with free keys.
func (f *form) dict(key string, m *map[string]string, optional bool) {
	if !f.reading {
		if !optional || len(*m) > 0 {
			f.put(key, mapOf(textFields(*m)))
		}
		return
	}
	v, ok := f.next(key, KindMap, optional)
	if !ok {
		return
	}
	*m = make(map[string]string, len(v.kids))
	for i := range v.kids {
		if v.kids[i].Value.kind != KindString {
			f.fail(key, "value of %q is %s, not string", v.kids[i].Key, v.kids[i].Value.kind)
			return
		}
		(*m)[v.kids[i].Key] = v.kids[i].Value.text
	}
	f.spare(key, optional && len(*m) == 0)
}

func textFields(m map[string]string) Payload {
	fields := make([]Field, 0, len(m))
	for k, s := range m {
		fields = append(fields, Field{Key: k, Value: String(s)})
	}
	return NewPayload(fields...)
}

// group is a map with fields of its own; n is a guess of their number.
func (f *form) group(key string, n int, describe func(*form)) {
	if !f.reading {
		f.put(key, mapOf(write(n, describe)))
		return
	}
	if v, ok := f.next(key, KindMap, need); ok {
		f.inside(key, v.kids, describe)
	}
}

// inside reads the fields of a map under key.
func (f *form) inside(key string, p Payload, describe func(*form)) {
	if f.err != nil {
		return
	}
	rest := f.fields
	f.fields = p
	describe(f)
	err := f.end()
	f.fields, f.err = rest, nil
	if err != nil {
		f.fail(key, "%w", err)
	}
}

// part is a group that may be absent as a whole: nil.
func part[T any](f *form, key string, p **T, describe func(*T, *form)) {
	if !f.reading {
		if *p != nil {
			f.put(key, mapOf(write(6, func(g *form) { describe(*p, g) })))
		}
		return
	}
	if v, ok := f.next(key, KindMap, may); ok {
		*p = new(T)
		f.inside(key, v.kids, func(g *form) { describe(*p, g) })
	}
}

// parts is a list of groups.
func parts[T any](f *form, key string, list *[]T, describe func(*T, *form)) {
	if !f.reading {
		kids := make(Payload, len(*list))
		for i := range *list {
			kids[i].Value = mapOf(write(6, func(g *form) { describe(&(*list)[i], g) }))
		}
		f.put(key, Value{kind: KindList, kids: kids})
		return
	}
	v, ok := f.next(key, KindList, need)
	if !ok {
		return
	}
	*list = make([]T, len(v.kids))
	for i := range v.kids {
		if v.kids[i].Value.kind != KindMap {
			f.fail(key, "item %d is %s, not map", i, v.kids[i].Value.kind)
			return
		}
		f.inside(key, v.kids[i].Value.kids, func(g *form) { describe(&(*list)[i], g) })
	}
}
