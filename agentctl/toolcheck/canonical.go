package toolcheck

import (
	"bytes"
	"errors"
	"io"

	"github.com/go-json-experiment/json/jsontext"
)

// maxDepth is how deep JSON may nest. What walks it below here is recursive.
const maxDepth = 100

var errTooDeep = errors.New("the JSON nests too deep")

// canonical gives a JSON text its one form: no space, the members of objects in
// order, strings in their shortest form (RFC 8785), and numbers as they were
// written: 1 and 1.0 may mean different things to whoever reads them next. It
// refuses what has no one meaning: duplicate members, broken Unicode, anything
// behind the value, and nesting deeper than maxDepth.
func canonical(text []byte) ([]byte, error) {
	if err := judgeDepth(text); err != nil {
		return nil, err
	}
	v := jsontext.Value(bytes.Clone(text))
	if err := v.Canonicalize(jsontext.CanonicalizeRawInts(false), jsontext.CanonicalizeRawFloats(false)); err != nil {
		return nil, err
	}
	return v, nil
}

// judgeDepth reads a JSON text token by token, without recursion.
func judgeDepth(text []byte) error {
	d := jsontext.NewDecoder(bytes.NewReader(text))
	for {
		_, err := d.ReadToken()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if d.StackDepth() > maxDepth {
			return errTooDeep
		}
	}
}
