package toolcheck

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"regexp/syntax"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"writegate/sqlgate/classify"
	"writegate/sqlgate/policy"
)

// MaxSchemaBytes bounds a declared schema.
const MaxSchemaBytes = 64 << 10

// nowhere is a loader that loads nothing: a schema is complete or refused, and
// nobody makes the gate fetch or read by naming a reference.
type nowhere struct{}

func (nowhere) Load(string) (any, error) {
	return nil, errors.New("references to other documents are not followed")
}

// Numbers of a schema: what a library makes of one is as long as its exponent
// says, and these are longer than any that a tool has use for.
const (
	maxNumberText = 100
	maxExponent   = 1000
)

// A schemaAnswer is what a child says of a schema; Why is empty where it is one.
type schemaAnswer struct {
	Checked bool
	Why     string
}

// The library takes time and memory that no rule about the text bounds: it
// compares each part with all before it, by paths as long as the text likes. So it
// reads schemas in a process of its own and is ended with it.
var schemaWork = classify.ChildWork{
	Name: "gate-schema",
	CPU:  400 * time.Millisecond, // of it a tenth is used by 64 KiB of ordinary properties
	Do: func(text []byte) any {
		answer := schemaAnswer{Checked: true}
		if err := compile(text); err != nil {
			answer.Why = cut(err.Error())
		}
		return answer
	},
}

func init() { schemaWork.ServeIfChild() }

// CheckSchema says why a text is no JSON Schema, in words for the person who
// wrote it; "" when it is one. Without $schema it is read as draft 2020-12.
// Clients wait for it by turns, and no longer than ctx. The error tells that the
// schema was not checked: ErrBusy when no turn came, or an internal one.
func (c *Checker) CheckSchema(ctx context.Context, client string, text []byte) (why string, err error) {
	if len(text) > MaxSchemaBytes {
		return fmt.Sprintf("a schema has at most %d bytes", MaxSchemaBytes), nil
	}
	clean, err := canonical(text)
	if err != nil {
		return "this is not JSON with one meaning: look for duplicate members and broken Unicode", nil
	}
	if clean[0] != '{' {
		return "a schema of a tool is a JSON object", nil
	}
	if err := checkNumbers(clean); err != nil {
		return err.Error(), nil
	}
	var answer schemaAnswer
	err = c.schemas.Ask(ctx, client, clean, &answer)
	switch {
	case errors.Is(err, classify.ErrChildBusy):
		return "", ErrBusy
	case errors.Is(err, classify.ErrChildEnded):
		return "it takes more time or memory to read than a schema may; make it smaller, or its names shorter", nil
	case err == nil && !answer.Checked:
		err = errors.New("toolcheck: an answer without content about a schema")
	}
	return answer.Why, err
}

// checkNumbers reads a JSON text token by token.
func checkNumbers(text []byte) error {
	d := jsontext.NewDecoder(bytes.NewReader(text))
	for {
		token, err := d.ReadToken()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if token.Kind() != '0' {
			continue
		}
		number := token.String()
		exponent := 0
		if e := strings.IndexAny(number, "eE"); e >= 0 {
			exponent, err = strconv.Atoi(number[e+1:])
		}
		if err != nil || len(number) > maxNumberText || exponent > maxExponent || exponent < -maxExponent {
			return fmt.Errorf("a number of a schema has at most %d characters and an exponent of at most %d", maxNumberText, maxExponent)
		}
	}
}

// compile hands a schema to the library, whose panic is an error.
func compile(text []byte) (err error) {
	defer func() {
		if recover() != nil {
			err = errors.New("it cannot be read")
		}
	}()
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		return err
	}
	compiler := jsonschema.NewCompiler()
	compiler.DefaultDraft(jsonschema.Draft2020)
	compiler.UseLoader(nowhere{})
	left, known := policy.MaxPatternSteps, map[string]*regexp.Regexp{}
	var tooLarge error // of the patterns: the library says it at the end of a long sentence
	compiler.UseRegexpEngine(func(pattern string) (jsonschema.Regexp, error) {
		if re := known[pattern]; re != nil { // each is asked for twice, as a format and as itself
			return re, nil
		}
		tree, err := syntax.Parse(pattern, syntax.Perl)
		if err != nil {
			return nil, err
		}
		if left -= policy.StepsOf(tree, left); left <= 0 {
			tooLarge = fmt.Errorf("the patterns of a schema come to at most %d steps; write them without counted repetitions, or use maxLength", policy.MaxPatternSteps)
			return nil, tooLarge
		}
		re, err := regexp.Compile(pattern)
		known[pattern] = re
		return re, err
	})
	const place = "urn:tool:schema"
	if err := compiler.AddResource(place, doc); err != nil {
		return err
	}
	_, err = compiler.Compile(place)
	if tooLarge != nil {
		return tooLarge
	}
	return err
}

// cut bounds what a library says about a client's own text.
func cut(s string) string {
	s = strings.Join(strings.Fields(s), " ")
	if r := []rune(s); len(r) > 300 {
		return string(r[:300]) + "…"
	}
	return s
}
