package httpd

import (
	"encoding/json"
	"errors"
	"reflect"

	"writegate/commands/fault"
)

// maxDepth bounds how deep a body may nest. The deepest body of any endpoint
// needs less than a third of it.
const maxDepth = 64

// DecodeJSON reads one JSON value into the struct that dst points to, strictly
// (spec/decisions.md part 1): names match exactly, an unknown or doubled name,
// a wrong type and anything behind the value are refused, text is valid UTF-8
// without lone surrogates, and nesting is bounded. An empty body is `{}`; a
// null is an absent field.
//
// The package encoding/json alone is too kind for a service whose evidence must
// say what was sent: it takes names in any case, the last of two equal names,
// and puts U+FFFD where text is broken.
//
// Errors are faults invalid_json whose details name the field and the offset.
func DecodeJSON(body []byte, dst any) error {
	d := decoder{in: body}
	d.space()
	if d.pos == len(d.in) {
		return nil
	}
	if err := d.value(reflect.ValueOf(dst).Elem(), ""); err != nil {
		return err
	}
	d.space()
	if d.pos < len(d.in) {
		return d.fail("", "there is something behind the JSON value")
	}
	return nil
}

// A decoder stands somewhere in a body. Its other half, scan.go, knows the
// grammar; this one knows what is wanted.
type decoder struct {
	in    []byte
	pos   int
	depth int
}

// value reads one value into dst. path names the field for error messages; it
// is "" for the whole body.
func (d *decoder) value(dst reflect.Value, path string) error {
	if d.peek() == 'n' {
		if path == "" {
			return d.wrongType(path, "an object")
		}
		return d.literal("null", path)
	}
	switch {
	case dst.Kind() == reflect.Pointer:
		fresh := reflect.New(dst.Type().Elem())
		if err := d.value(fresh.Elem(), path); err != nil {
			return err
		}
		dst.Set(fresh)
		return nil
	case dst.Kind() == reflect.String:
		return d.text(dst, path)
	case dst.Kind() == reflect.Struct && !isUnmarshaler(dst):
		return d.object(dst, path)
	case dst.Kind() == reflect.Slice && dst.Type().Elem().Kind() == reflect.Struct:
		return d.objects(dst, path)
	}
	return d.other(dst, path)
}

func isUnmarshaler(dst reflect.Value) bool {
	_, ok := dst.Addr().Interface().(json.Unmarshaler)
	return ok
}

func (d *decoder) text(dst reflect.Value, path string) error {
	if d.peek() != '"' {
		return d.wrongType(path, "a string")
	}
	s, err := d.str(path)
	if err == nil {
		dst.SetString(s)
	}
	return err
}

// object reads the members of a struct.
func (d *decoder) object(dst reflect.Value, path string) error {
	if d.peek() != '{' {
		return d.wrongType(path, "an object")
	}
	fields := fieldsOf(dst.Type())
	return d.members(path, func(name, path string) error {
		index, ok := fields[name]
		if !ok {
			return d.fail(path, "there is no such field")
		}
		return d.value(dst.Field(index), path)
	})
}

// objects reads a list of structs, so that their members are checked as well.
func (d *decoder) objects(dst reflect.Value, path string) error {
	if d.peek() != '[' {
		return d.wrongType(path, "a list")
	}
	dst.SetZero()
	return d.elements(path, func(path string) error {
		item := reflect.New(dst.Type().Elem()).Elem()
		if err := d.value(item, path); err != nil {
			return err
		}
		dst.Set(reflect.Append(dst, item))
		return nil
	})
}

// other checks a value of any other kind as strictly as the rest and leaves
// its conversion to encoding/json.
func (d *decoder) other(dst reflect.Value, path string) error {
	start := d.pos
	if err := d.skip(path); err != nil {
		return err
	}
	err := json.Unmarshal(d.in[start:d.pos], dst.Addr().Interface())
	if err == nil {
		return nil
	}
	d.pos = start
	if wrong := new(json.UnmarshalTypeError); errors.As(err, &wrong) {
		return d.wrongType(path, wants(dst.Type()))
	}
	return d.fail(path, "the field can't hold this value")
}

func wants(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.Slice:
		return "a list of " + plural(t.Elem().Kind())
	case reflect.Map:
		return "an object"
	case reflect.Float32, reflect.Float64:
		return "a number"
	default:
		return "a whole number in its range"
	}
}

func plural(kind reflect.Kind) string {
	if kind == reflect.String {
		return "strings"
	}
	return "values of one type"
}

func (d *decoder) wrongType(path, want string) error {
	f := d.fault(path, "must be "+want+", not "+d.kind())
	return f.With("expected", want)
}

// kind names the value at the position for an error message.
func (d *decoder) kind() string {
	switch c := d.peek(); c {
	case '{':
		return "an object"
	case '[':
		return "a list"
	case '"':
		return "a string"
	case 't', 'f':
		return "true or false"
	case 'n':
		return "null"
	default:
		if c == '-' || '0' <= c && c <= '9' {
			return "this number"
		}
		return "this"
	}
}

func (d *decoder) fail(path, what string) error { return d.fault(path, what) }

func (d *decoder) fault(path, what string) *fault.Fault {
	offset := min(d.pos, len(d.in))
	if path == "" {
		return fault.New(fault.InvalidJSON, "The request body can't be read: %s (at byte %d). Correct it and send it again.", what, offset).With("offset", offset)
	}
	path = clip(path, maxNameInMessage)
	return fault.New(fault.InvalidJSON, "The request body can't be read: %q: %s (at byte %d). Correct it and send it again.", path, what, offset).
		With("field", path).With("offset", offset)
}

// maxNameInMessage bounds what a client's own field name adds to an answer.
const maxNameInMessage = 100

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}
