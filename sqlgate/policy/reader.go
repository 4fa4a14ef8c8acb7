package policy

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// Bounds of a document.
const (
	maxDocumentBytes = 256 << 10
	maxDocumentDepth = 12
	maxKeyBytes      = 256 // a key stands in the pointer of each finding below it
)

// parseYAML reads exactly one YAML document that is plain data: no anchors,
// aliases, merge keys, tags or doubled keys. JSON is the YAML it is.
func (r *reader) parseYAML(source []byte, maxBytes int) *yaml.Node {
	if len(source) > maxBytes {
		r.add(nil, "", codeLimit, "", "the document has %d bytes; at most %d are allowed", len(source), maxBytes)
		return nil
	}
	if !utf8.Valid(source) {
		r.add(nil, "", codeYAMLInvalid, "", "the document is not valid UTF-8")
		return nil
	}
	root, err := decodeOne(source)
	if err != nil {
		line, message := yamlFault(err)
		f := at(NewFinding(codeYAMLInvalid, "the document cannot be read: %s", message), line, min(line, 1))
		f.Suggestion = yamlHint(r.lines, line, message)
		r.findings = append(r.findings, f)
		return nil
	}
	before := len(r.findings)
	r.checkTree(root, "", 1)
	if hasErrors(r.findings[before:]) {
		return nil
	}
	return root
}

var errSecondDocument = errors.New("there is a second document after it; a file holds one")

// decodeOne turns a panic of the YAML package into an error: what a client
// sends must not be able to end the process.
func decodeOne(source []byte) (root *yaml.Node, err error) {
	defer func() {
		if p := recover(); p != nil {
			root, err = nil, fmt.Errorf("the YAML reader gave up: %v", p)
		}
	}()
	decoder := yaml.NewDecoder(bytes.NewReader(source))
	var document yaml.Node
	if err := decoder.Decode(&document); err != nil {
		if errors.Is(err, io.EOF) {
			return nil, errors.New("it is empty")
		}
		return nil, err
	}
	var second yaml.Node
	if err := decoder.Decode(&second); !errors.Is(err, io.EOF) {
		if err == nil {
			err = errSecondDocument
		}
		return nil, err
	}
	if document.Kind != yaml.DocumentNode || len(document.Content) != 1 {
		return nil, errors.New("it is empty")
	}
	return document.Content[0], nil
}

// yamlFault takes the line out of a message "yaml: line 7: what is wrong".
func yamlFault(err error) (line int, message string) {
	message = strings.TrimPrefix(err.Error(), "yaml: ")
	rest, found := strings.CutPrefix(message, "line ")
	if !found {
		return 0, message
	}
	number, text, _ := strings.Cut(rest, ": ")
	if n, err := strconv.Atoi(number); err == nil {
		return n, text
	}
	return 0, message
}

// checkTree refuses what is more than plain data, and nesting past the bound.
func (r *reader) checkTree(n *yaml.Node, pointer string, depth int) {
	switch {
	case n.Kind == yaml.AliasNode:
		r.add(n, pointer, codeAnchor, "", "the alias *%s is not allowed; write the value out, or use a list of lists", n.Value)
		return
	case n.Anchor != "":
		r.add(n, pointer, codeAnchor, "", "the anchor &%s is not allowed; write the value out, or use a list of lists", n.Anchor)
	case n.Style&yaml.TaggedStyle != 0:
		r.add(n, pointer, codeAnchor, "", "the tag %s is not allowed; quote the value if it is a text", n.Tag)
	}
	if n.Kind != yaml.MappingNode && n.Kind != yaml.SequenceNode {
		return
	}
	if depth > maxDocumentDepth {
		r.add(n, pointer, codeLimit, "", "the document is nested deeper than %d levels here", maxDocumentDepth)
		return
	}
	if n.Kind == yaml.SequenceNode {
		for i, item := range n.Content {
			if len(r.findings) > maxFindings {
				return
			}
			r.checkTree(item, pointer+"/"+strconv.Itoa(i), depth+1)
		}
		return
	}
	r.checkMapping(n, pointer, depth)
}

func (r *reader) checkMapping(n *yaml.Node, pointer string, depth int) {
	first := map[string]*yaml.Node{}
	for i := 0; i+1 < len(n.Content) && len(r.findings) <= maxFindings; i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		if len(key.Value) > maxKeyBytes {
			r.add(key, pointer, codeLimit, "", "a key has %d bytes; at most %d are allowed", len(key.Value), maxKeyBytes)
			continue
		}
		here := pointer + "/" + escapePointer(key.Value)
		switch {
		case key.Tag == "!!merge":
			r.add(key, here, codeAnchor, "", "the merge key << is not allowed; write the keys out")
		case key.Kind != yaml.ScalarNode:
			r.add(key, pointer, codeTypeMismatch, "", "a key must be a text")
		case first[key.Value] != nil:
			f := r.add(key, here, codeDuplicateKey, "", "the key %s stands here a second time; the first is in line %d", key.Value, first[key.Value].Line)
			f.Related = []Related{{Pointer: here, Line: first[key.Value].Line}}
		default:
			first[key.Value] = key
			if key.Anchor != "" || key.Style&yaml.TaggedStyle != 0 {
				r.checkTree(key, here, depth)
			}
		}
		r.checkTree(value, here, depth+1)
	}
}

func escapePointer(key string) string {
	return strings.ReplaceAll(strings.ReplaceAll(key, "~", "~0"), "/", "~1")
}

// A reader turns YAML nodes into values and collects what is wrong with them.
// It goes on after a fault, so that all are reported at once.
type reader struct {
	lines    []string // of the source, to map places inside block texts
	ruleID   string   // the rule being read, for findings
	findings []Finding
}

func newReader(source []byte) *reader {
	return &reader{lines: strings.Split(string(source), "\n")}
}

func at(f Finding, line, column int) Finding {
	f.Line, f.Column = line, column
	return f
}

// add collects a finding at a node (nil: the document as a whole).
func (r *reader) add(n *yaml.Node, pointer, code, suggestion, format string, args ...any) *Finding {
	f := NewFinding(code, format, args...)
	f.RuleID, f.Pointer, f.Suggestion = r.ruleID, pointer, suggestion
	if n != nil {
		f.Line, f.Column = n.Line, n.Column
	}
	r.findings = append(r.findings, f)
	return &r.findings[len(r.findings)-1]
}

// A field is one key that a mapping may hold.
type field struct {
	name     string
	required bool
	read     func(n *yaml.Node, pointer string)
}

// object reads a mapping field by field, in the order of the file, and reports
// unknown and missing keys. It returns false when n is no mapping.
func (r *reader) object(n *yaml.Node, pointer, what string, fields []field) bool {
	if n.Kind != yaml.MappingNode {
		r.mismatch(n, pointer, what+" must be a mapping (key: value)")
		return false
	}
	var names []string
	known := map[string]field{}
	for _, f := range fields {
		known[f.name] = f
		names = append(names, f.name)
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		here := pointer + "/" + escapePointer(key.Value)
		f, ok := known[key.Value]
		if !ok {
			r.unknownField(key, here, what, names)
			continue
		}
		delete(known, key.Value)
		f.read(value, here)
	}
	for _, f := range fields {
		if _, left := known[f.name]; left && f.required {
			r.add(n, pointer, codeMissingField, f.name+": ...", "%s has no %s", what, f.name)
		}
	}
	return true
}

func (r *reader) unknownField(key *yaml.Node, pointer, what string, names []string) {
	near := nearest(key.Value, names)
	hint := "; known are " + strings.Join(names, ", ")
	if near != "" {
		hint = ""
	}
	r.add(key, pointer, codeUnknownField, near, "%s can't have the key %s%s", what, clip(key.Value), hint)
}

func (r *reader) mismatch(n *yaml.Node, pointer, message string) {
	r.add(n, pointer, codeTypeMismatch, "", "%s, but this is %s", message, describe(n))
}

func describe(n *yaml.Node) string {
	switch {
	case n.Kind == yaml.MappingNode:
		return "a mapping"
	case n.Kind == yaml.SequenceNode:
		return "a list"
	case n.Tag == "!!null":
		return "empty"
	case n.Tag == "!!str":
		return "the text " + clip(n.Value)
	default:
		return "the " + strings.TrimPrefix(n.Tag, "!!") + " " + clip(n.Value)
	}
}

// clip keeps a stranger's text short and on one line inside a message.
func clip(text string) string {
	const most = 60
	if runes := []rune(text); len(runes) > most {
		text = string(runes[:most]) + "..."
	}
	return strconv.Quote(text)
}

// text reads a string of at most most characters.
func (r *reader) text(n *yaml.Node, pointer, what string, most int) (string, bool) {
	if n.Kind != yaml.ScalarNode || n.Tag != "!!str" {
		suggestion := ""
		if n.Kind == yaml.ScalarNode && n.Tag != "!!null" {
			suggestion = strconv.Quote(n.Value)
		}
		r.add(n, pointer, codeTypeMismatch, suggestion, "%s must be a text, but this is %s", what, describe(n))
		return "", false
	}
	if count := utf8.RuneCountInString(n.Value); count > most {
		r.add(n, pointer, codeLimit, "", "%s has %d characters; at most %d are allowed", what, count, most)
		return "", false
	}
	return n.Value, true
}

func (r *reader) boolean(n *yaml.Node, pointer, what string) (bool, bool) {
	if n.Kind != yaml.ScalarNode || n.Tag != "!!bool" {
		r.mismatch(n, pointer, what+" must be true or false")
		return false, false
	}
	return strings.EqualFold(n.Value, "true"), true
}

func (r *reader) integer(n *yaml.Node, pointer, what string, least, most int64) (int64, bool) {
	if n.Kind != yaml.ScalarNode || n.Tag != "!!int" {
		r.mismatch(n, pointer, what+" must be a whole number")
		return 0, false
	}
	value, err := strconv.ParseInt(n.Value, 10, 64)
	if err != nil || value < least || value > most {
		r.add(n, pointer, codeLimit, "", "%s must lie between %d and %d in plain digits, but this is %s", what, least, most, clip(n.Value))
		return 0, false
	}
	return value, true
}

// sequence calls read for each entry of a list.
func (r *reader) sequence(n *yaml.Node, pointer, what string, read func(item *yaml.Node, pointer string)) bool {
	if n.Kind != yaml.SequenceNode {
		suggestion := ""
		if n.Kind == yaml.ScalarNode && n.Tag != "!!null" {
			suggestion = "[" + n.Value + "]"
		}
		r.add(n, pointer, codeTypeMismatch, suggestion, "%s must be a list, but this is %s", what, describe(n))
		return false
	}
	for i, item := range n.Content {
		read(item, pointer+"/"+strconv.Itoa(i))
	}
	return true
}

// enum reads one name of a vocabulary.
func (r *reader) enum(n *yaml.Node, pointer, what string, words []string) (string, bool) {
	value, ok := r.text(n, pointer, what, maxText)
	if !ok {
		return "", false
	}
	if contains(words, value) {
		return value, true
	}
	r.unknownName(n, pointer, what, value, words)
	return "", false
}

func (r *reader) unknownName(n *yaml.Node, pointer, what, value string, words []string) {
	near := nearest(value, words)
	hint := "; known are " + strings.Join(words, ", ")
	if near != "" {
		hint = ""
	}
	r.add(n, pointer, codeUnknownEnum, near, "%s knows no %s%s", what, clip(value), hint)
}
