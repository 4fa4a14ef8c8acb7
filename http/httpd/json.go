package httpd

import (
	"bytes"
	"errors"
	"io"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/agnivade/levenshtein"
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"writegate/commands/fault"
)

// maxDepth bounds how deep a body may nest. The deepest body of any endpoint
// needs less than a third of it.
const maxDepth = 64

// DecodeJSON reads one JSON object into the struct that dst points to, strictly
// (spec/decisions.md part 1): names match exactly, an unknown or doubled name,
// a wrong type and anything behind the object are refused, text is valid UTF-8
// without lone surrogates, and nesting is bounded. An empty body is `{}`; a
// null leaves its field as it is without it.
//
// The package encoding/json is too kind for a service whose evidence must say
// what was sent: it takes names in any case, the last of two equal names, and
// puts U+FFFD where text is broken. Version 2 of it, used here, does not.
//
// Errors are faults invalid_json whose details name the field and the offset.
func DecodeJSON(body []byte, dst any) error {
	if len(bytes.Trim(body, " \t\r\n")) == 0 {
		return nil
	}
	if err := checkShape(body); err != nil {
		return err
	}
	if err := json.Unmarshal(body, dst, json.RejectUnknownMembers(true)); err != nil {
		return unreadable(err)
	}
	return nil
}

// DecodeKnown is DecodeJSON for a message of a protocol that others extend: members
// that dst does not name are left alone, and an empty body is refused.
func DecodeKnown(body []byte, dst any) error {
	if err := checkShape(body); err != nil {
		return err
	}
	if err := json.Unmarshal(body, dst); err != nil {
		return unreadable(err)
	}
	return nil
}

// checkShape looks at what no option of the library bounds: that the body is an
// object, and its depth. The whole of it is read, so a body that is no JSON is
// told from one that means nothing to us.
func checkShape(body []byte) error {
	d := jsontext.NewDecoder(bytes.NewBuffer(body))
	if kind := d.PeekKind(); kind != jsontext.KindInvalid && kind != jsontext.KindBeginObject {
		return invalidJSON("", d.InputOffset(), mustBe(anObject, kind)).With("expected", anObject)
	}
	for {
		_, err := d.ReadToken()
		switch {
		case err == io.EOF:
			return nil
		case err != nil:
			return unreadable(err)
		case d.StackDepth() > maxDepth:
			return invalidJSON(d.StackPointer(), d.InputOffset(), "nested more than "+strconv.Itoa(maxDepth)+" levels deep")
		}
	}
}

// unreadable says in our words where and why the library stopped.
func unreadable(err error) *fault.Fault {
	var meaning *json.SemanticError
	var syntax *jsontext.SyntacticError
	switch {
	case errors.As(err, &meaning):
		return meaningless(meaning)
	case errors.Is(err, io.ErrUnexpectedEOF) && errors.As(err, &syntax):
		return invalidJSON(syntax.JSONPointer, syntax.ByteOffset, "the JSON ends too early")
	case errors.Is(err, jsontext.ErrDuplicateName) && errors.As(err, &syntax):
		return invalidJSON(syntax.JSONPointer, syntax.ByteOffset, "the field is there twice")
	case errors.As(err, &syntax):
		return invalidJSON(syntax.JSONPointer, syntax.ByteOffset, syntax.Err.Error())
	}
	return invalidJSON("", 0, "it means nothing here").Because(err)
}

// meaningless is the fault of a value that is JSON, but not what its field takes.
func meaningless(e *json.SemanticError) *fault.Fault {
	want := wants(e.GoType)
	switch {
	case errors.Is(e.Err, json.ErrUnknownName):
		return invalidJSON(e.JSONPointer, e.ByteOffset, "there is no such field"+nearestField(e.GoType, e.JSONPointer.LastToken()))
	case want == "":
		return invalidJSON(e.JSONPointer, e.ByteOffset, "the field can't hold this value")
	}
	return invalidJSON(e.JSONPointer, e.ByteOffset, mustBe(want, e.JSONKind)).With("expected", want)
}

// invalidJSON is the fault of a body at a place.
func invalidJSON(at jsontext.Pointer, offset int64, what string) *fault.Fault {
	var names []string
	for name := range at.Tokens() {
		names = append(names, name)
	}
	field := clip(strings.Join(names, "."), maxNameInMessage)
	if field == "" {
		return fault.New(fault.InvalidJSON, "The request body can't be read: %s (at byte %d). Correct it and send it again.", what, offset).With("offset", offset)
	}
	return fault.New(fault.InvalidJSON, "The request body can't be read: %q: %s (at byte %d). Correct it and send it again.", field, what, offset).
		With("field", field).With("offset", offset)
}

// maxNameInMessage bounds what a client's own field name adds to an answer.
const maxNameInMessage = 100

const anObject = "an object"

func mustBe(want string, got jsontext.Kind) string { return "must be " + want + ", not " + nameOf(got) }

// nameOf names the kind of a value for an error message.
func nameOf(kind jsontext.Kind) string {
	switch kind {
	case jsontext.KindBeginObject:
		return anObject
	case jsontext.KindBeginArray:
		return "a list"
	case jsontext.KindString:
		return "a string"
	case jsontext.KindTrue, jsontext.KindFalse:
		return "true or false"
	case jsontext.KindNumber:
		return "this number"
	}
	return "null"
}

// wants names what a field of a type takes, "" where there is no word for it.
func wants(t reflect.Type) string {
	if t == nil {
		return ""
	}
	switch t.Kind() {
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "true or false"
	case reflect.Float32, reflect.Float64:
		return "a number"
	case reflect.Slice:
		return "a list"
	case reflect.Struct:
		if t == reflect.TypeFor[time.Time]() {
			return "a moment such as 2026-01-02T03:04:05Z"
		}
		return anObject
	case reflect.Map:
		return anObject
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return "a whole number in its range"
	}
	return ""
}

// nearestField suggests the field of a struct that a name may be a slip for.
func nearestField(t reflect.Type, name string) string {
	if t == nil || t.Kind() != reflect.Struct || len(name) > maxNameInMessage {
		return ""
	}
	best, distance := "", len(name)/3+2 // as many slips as a word of this length may have, and one
	for _, f := range reflect.VisibleFields(t) {
		known, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if known == "" || known == "-" {
			continue
		}
		if d := levenshtein.ComputeDistance(strings.ToLower(name), known); d < distance {
			best, distance = known, d
		}
	}
	if best == "" {
		return ""
	}
	return "; did you mean " + strconv.Quote(best) + "?"
}
