package toolcheck

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"regexp/syntax"

	"github.com/santhosh-tekuri/jsonschema/v6"

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

// JudgeSchema reports why a text is no JSON Schema, in words for the person who
// wrote it; nil when it is one. Without $schema it is read as draft 2020-12.
func JudgeSchema(text []byte) (err error) {
	if len(text) > MaxSchemaBytes {
		return fmt.Errorf("a schema has at most %d bytes", MaxSchemaBytes)
	}
	clean, err := canonical(text)
	if err != nil {
		return errors.New("this is not JSON with one meaning: look for duplicate members and broken Unicode")
	}
	if clean[0] != '{' {
		return errors.New("a schema of a tool is a JSON object")
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(clean))
	if err != nil {
		return err
	}
	compiler := jsonschema.NewCompiler()
	compiler.DefaultDraft(jsonschema.Draft2020)
	compiler.UseLoader(nowhere{})
	left, known := policy.MaxPatternSteps, map[string]*regexp.Regexp{}
	compiler.UseRegexpEngine(func(pattern string) (jsonschema.Regexp, error) {
		if re := known[pattern]; re != nil { // each is asked for twice, as a format and as itself
			return re, nil
		}
		tree, err := syntax.Parse(pattern, syntax.Perl)
		if err != nil {
			return nil, err
		}
		if left -= policy.StepsOf(tree, left); left <= 0 {
			return nil, fmt.Errorf("the patterns of a schema come to at most %d steps; write them without counted repetitions, or use maxLength", policy.MaxPatternSteps)
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
	return err
}
