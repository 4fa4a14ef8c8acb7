package event

import (
	"fmt"
	"math"
	"slices"
	"sync"
)

// A form describes a payload once for both directions: each event type walks
// its fields in the order of their keys, and the form either writes them, into
// bytes or into a Payload, or reads them. So what is written and what is read can't
// drift apart.
//
// Reading is strict: a missing, unknown, mistyped or out-of-range field is an
// error, and so is an optional field that is spelled out although it is zero,
// because the same fact has to have one payload alone. It reads a Payload, or
// the checked bytes of one, with the same results and the same errors.
type form struct {
	reading bool
	out     *writer // of the bytes that are written; nil: a Payload is
	level
	now    *Value // the value that was come to, of a Payload
	packed reader // or the bytes that are read, from that value on
	bare   bool   // the bytes are read
	err    error
}

// A level is what is left to read of one map or list: so many fields or items,
// and these themselves where a Payload is read. A form that writes has there what
// is written so far, or how many fields where it writes bytes.
type level struct {
	fields Payload
	left   int
}

// write collects the fields that describe puts out; n is a guess of their number.
func write(n int, describe func(*form)) Payload {
	f := form{level: level{fields: make(Payload, 0, n)}}
	describe(&f)
	return f.fields
}

// pack writes the bytes of a payload, as the encoder does those of its Fields.
func pack(p Typed) (packed string, err error) {
	w := writers.Get().(*writer)
	w.buf = w.scratch[:0]
	f := forms.Get().(*form)
	f.out = w
	f.wrap(p.form)
	packed, err = string(w.buf), w.err
	f.release()
	w.keepScratch()
	w.release()
	return packed, err
}

// wrap writes a map of what describe puts out. How many fields it has is known behind
// them, and almost always fits into the byte that is kept for it.
func (f *form) wrap(describe func(*form)) {
	outside, at := f.level, len(f.out.buf)
	f.level, f.out.buf = level{}, append(f.out.buf, 0)
	describe(f)
	b := f.out.buf
	if n := f.left; uint64(n) < maps.shortEnd() {
		b[at] = maps.short | byte(n)
	} else {
		b = slices.Insert(b, at+1, byte(n>>8), byte(n))
		b[at] = maps.long2
	}
	f.level, f.out.buf = outside, b
}

// name writes a key of bytes.
func (f *form) name(key string) {
	f.left++
	f.out.text(key)
}

// read hands p's fields to describe and refuses what is left over.
func read(p Payload, describe func(*form)) error {
	f := forms.Get().(*form)
	f.reading, f.level = true, level{p, len(p)}
	describe(f)
	err := f.end()
	f.release()
	return err
}

// readPacked reads the bytes of a payload that were checked.
func readPacked(packed string, into Typed) error {
	f := forms.Get().(*form)
	f.reading, f.bare, f.packed.record = true, true, packed
	f.left = f.packed.length(f.packed.head(), &maps)
	into.form(f)
	err := f.end()
	if err == nil {
		err = f.packed.end()
	}
	f.release()
	return err
}

// forms are those that read nothing now. A replay reads millions of payloads.
var forms = sync.Pool{New: func() any { return new(form) }}

// release gives f back with nothing of what it read, which it must not keep alive.
func (f *form) release() {
	*f = form{}
	forms.Put(f)
}

func (f *form) end() error {
	if f.err == nil && f.left > 0 {
		f.err = fmt.Errorf("field %q is unknown or out of order", f.key())
	}
	return f.err
}

// key is that of the first field that is left.
func (f *form) key() string {
	if !f.bare {
		return f.fields[0].Key
	}
	ahead := f.packed
	return ahead.text()
}

func (f *form) fail(key, format string, args ...any) {
	if f.err == nil {
		f.err = fmt.Errorf("field %q: "+format, append([]any{key}, args...)...)
	}
}

func (f *form) put(key string, v Value) {
	if f.out == nil {
		f.fields = append(f.fields, Field{Key: key, Value: v})
		return
	}
	f.name(key)
	f.out.value(&v, payloadDepth)
}

// next comes to the value that must or may stand under key now.
func (f *form) next(key string, k Kind, optional bool) bool {
	if f.err != nil {
		return false
	}
	there := f.left > 0
	if there && f.bare {
		there = f.packed.key(key)
	} else if there {
		there = f.fields[0].Key == key
	}
	if !there {
		if !optional {
			f.fail(key, "missing")
		}
		return false
	}
	f.item()
	if got := f.kind(); got != k {
		f.fail(key, "is %s, not %s", got, k)
		return false
	}
	return true
}

// item comes to the next item of a list, or to the value whose key was seen to.
func (f *form) item() {
	f.left--
	if !f.bare {
		f.now, f.fields = &f.fields[0].Value, f.fields[1:]
	}
}

// kind is that of the value that was come to. What follows takes such a value,
// once, and only one of the right kind.
func (f *form) kind() Kind {
	if f.bare {
		return f.packed.kind()
	}
	return f.now.kind
}

func (f *form) text() string {
	if f.bare {
		return f.packed.rawText(f.packed.head())
	}
	return f.now.text
}

func (f *form) blob() string {
	if f.bare {
		return f.packed.blob(f.packed.head())
	}
	return f.now.text
}

func (f *form) whole() int64 {
	if f.bare {
		return f.packed.int()
	}
	return f.now.num
}

func (f *form) truth() bool {
	if f.bare {
		return f.packed.head() == headTrue
	}
	return f.now.num != 0
}

// enter goes into a map or a list, and gives what to go back to.
func (f *form) enter(kind *family) (outside level) {
	outside = f.level
	if f.bare {
		f.left = f.packed.length(f.packed.head(), kind)
	} else {
		f.level = level{f.now.kids, len(f.now.kids)}
	}
	return outside
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
	if f.next(key, KindString, optional) {
		*s = f.text()
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
	if f.next(key, KindBool, optional) {
		*b = f.truth()
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
	if !f.next(key, KindInt, optional) {
		return
	}
	v := f.whole()
	*n = T(v)
	if int64(*n) != v || (*n < 0) != (v < 0) {
		f.fail(key, "%d is out of range", v)
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
	if !f.next(key, KindInt, may) {
		return
	}
	limit := f.whole()
	if limit < 0 {
		f.fail(key, "%d is out of range", limit)
	}
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
	if !f.next(key, KindBytes, optional) {
		return
	}
	v := f.blob()
	if len(v) != len(b) {
		f.fail(key, "has %d bytes, not %d", len(v), len(b))
		return
	}
	copy(b, v)
	f.spare(key, optional && zero())
}

func (f *form) bytes(key string, b *[]byte, optional bool) {
	if !f.reading {
		if !optional || len(*b) > 0 {
			f.put(key, Bytes(*b))
		}
		return
	}
	if f.next(key, KindBytes, optional) {
		*b = []byte(f.blob())
		f.spare(key, optional && len(*b) == 0)
	}
}

func (f *form) strs(key string, list *[]string, optional bool) {
	if !f.reading {
		switch {
		case optional && len(*list) == 0:
		case f.out == nil:
			f.put(key, Strings(*list))
		default:
			f.name(key)
			f.out.count(len(*list))
			for _, s := range *list {
				f.out.text(s)
			}
		}
		return
	}
	items(f, key, list, optional, KindString, (*form).text)
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
	items(f, key, list, optional, KindInt, func(f *form) int { return int(f.whole()) })
}

// items reads a list whose items are all of one kind.
func items[T any](f *form, key string, list *[]T, optional bool, k Kind, take func(*form) T) {
	if !f.next(key, KindList, optional) {
		return
	}
	outside := f.enter(&arrays)
	*list = make([]T, f.left)
	for i := range *list {
		f.item()
		if got := f.kind(); got != k {
			f.fail(key, "item %d is %s, not %s", i, got, k)
			return
		}
		(*list)[i] = take(f)
	}
	f.level = outside
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
	if !f.next(key, KindMap, optional) {
		return
	}
	outside := f.enter(&maps)
	*m = make(map[string]string, f.left)
	for f.left > 0 {
		name := f.anyKey()
		if got := f.kind(); got != KindString {
			f.fail(key, "value of %q is %s, not string", name, got)
			return
		}
		(*m)[name] = f.text()
	}
	f.level = outside
	f.spare(key, optional && len(*m) == 0)
}

// anyKey takes the next key, whatever it is, and comes to its value.
func (f *form) anyKey() (key string) {
	if f.bare {
		key = f.packed.rawText(f.packed.head())
	} else {
		key = f.fields[0].Key
	}
	f.item()
	return key
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
		f.within(key, n, describe)
		return
	}
	if f.next(key, KindMap, need) {
		f.inside(key, describe)
	}
}

// within writes a map under key.
func (f *form) within(key string, n int, describe func(*form)) {
	if f.out == nil {
		f.put(key, mapOf(write(n, describe)))
		return
	}
	f.name(key)
	f.wrap(describe)
}

// inside reads the fields of the map under key that was come to.
func (f *form) inside(key string, describe func(*form)) {
	outside := f.enter(&maps)
	describe(f)
	err := f.end()
	f.level, f.err = outside, nil
	if err != nil {
		f.fail(key, "%w", err)
	}
}

// part is a group that may be absent as a whole: nil.
func part[T any](f *form, key string, p **T, describe func(*T, *form)) {
	if !f.reading {
		if *p != nil {
			f.within(key, 6, func(g *form) { describe(*p, g) })
		}
		return
	}
	if f.next(key, KindMap, may) {
		*p = new(T)
		f.inside(key, func(g *form) { describe(*p, g) })
	}
}

// parts is a list of groups.
func parts[T any](f *form, key string, list *[]T, describe func(*T, *form)) {
	if !f.reading && f.out != nil {
		f.name(key)
		f.out.count(len(*list))
		for i := range *list {
			f.wrap(func(g *form) { describe(&(*list)[i], g) })
		}
		return
	}
	if !f.reading {
		kids := make(Payload, len(*list))
		for i := range *list {
			kids[i].Value = mapOf(write(6, func(g *form) { describe(&(*list)[i], g) }))
		}
		f.put(key, Value{kind: KindList, kids: kids})
		return
	}
	if !f.next(key, KindList, need) {
		return
	}
	outside := f.enter(&arrays)
	*list = make([]T, f.left)
	for i := range *list {
		f.item()
		if got := f.kind(); got != KindMap {
			f.fail(key, "item %d is %s, not map", i, got)
			return
		}
		if f.inside(key, func(g *form) { describe(&(*list)[i], g) }); f.err != nil {
			return
		}
	}
	f.level = outside
}
