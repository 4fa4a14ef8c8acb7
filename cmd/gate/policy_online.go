package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"writegate/cmd/terminal"
	"writegate/http/controlplane"
)

// refused tells what a gate refused, with its details, and makes the exit code
// 1. With asJSON the error object goes to the output as it came. text is the
// document that findings are about, where there is one.
func (a *app) refused(err error, asJSON bool, text *policyText) error {
	var r *gateRefusal
	if !errors.As(err, &r) {
		return exitWith(exitFailed, err)
	}
	if asJSON {
		return exitWith(exitFailed, writeLine(a.out, r.raw))
	}
	if findings := r.findings(); len(findings) > 0 {
		if text == nil {
			text = &policyText{shown: "policy"}
		}
		if err := a.printFindings(a.err, text, findings); err != nil {
			return exitWith(exitFailed, err)
		}
	}
	style := terminal.StyleFor(a.err, a.environ)
	_, failed := fmt.Fprintf(a.err, "%s %s (%s)\n%s", style.Red("gate:"), visible(r.Message), r.Code, detailLines(r.Details))
	return exitWith(exitFailed, failed)
}

// detailLines are the details of an error object, a line each.
func detailLines(details map[string]any) string {
	var b strings.Builder
	for _, key := range slices.Sorted(maps.Keys(details)) {
		value := details[key]
		fields, many := value.(map[string]any)
		switch {
		case key == "findings" || value == nil:
		case many:
			for _, name := range slices.Sorted(maps.Keys(fields)) {
				fmt.Fprintf(&b, "  %s %s\n", name, shown(fields[name]))
			}
		default:
			fmt.Fprintf(&b, "  %s: %s\n", key, shown(value))
		}
	}
	return b.String()
}

// shown is a value of an answer as a person reads it.
func shown(value any) string {
	switch v := value.(type) {
	case nil:
		return "none"
	case string:
		return marked(v)
	case []string:
		return marked("[" + strings.Join(v, ", ") + "]")
	case []any:
		texts := make([]string, len(v))
		for i := range v {
			texts[i] = shown(v[i])
		}
		return "[" + strings.Join(texts, ", ") + "]"
	case map[string]any:
		var pairs []string
		for _, key := range slices.Sorted(maps.Keys(v)) {
			if v[key] == nil {
				continue
			}
			text := shown(v[key])
			if _, isText := v[key].(string); isText {
				text = fmt.Sprintf("%q", text)
			}
			pairs = append(pairs, key+" = "+text)
		}
		switch {
		case len(v) == 0:
			return "nothing"
		case len(pairs) == 0:
			return "as by default"
		}
		return strings.Join(pairs, ", ")
	}
	text, err := json.Marshal(value)
	if err != nil {
		return fmt.Sprint(value)
	}
	return string(text)
}

// visible is terminal.Visible, which most of what is printed here goes through.
func visible(text string) string { return terminal.Visible(text) }

// marked is visible of what callers write, where letters are written out, too, that a reader
// takes for others.
func marked(text string) string { return visible(controlplane.Marked(text)) }

func writeLine(w io.Writer, text []byte) error {
	_, err := fmt.Fprintf(w, "%s\n", strings.TrimRight(string(text), "\n"))
	return err
}

// confirmed asks the person at the other end. Whoever cannot be asked says so
// with --yes.
func (a *app) confirmed(question string, yes bool) error {
	if yes {
		return nil
	}
	fmt.Fprintf(a.err, "%s [y/N] ", question)
	answer, err := bufio.NewReader(io.LimitReader(a.in, 64)).ReadString('\n')
	switch strings.ToLower(strings.TrimSpace(answer)) {
	case "y", "yes":
		return nil
	case "":
		if err != nil {
			return exitWith(exitFailed, errors.New("nothing was changed: nobody answered; use --yes where nobody can be asked"))
		}
	}
	return exitWith(exitFailed, errors.New("nothing was changed"))
}

// written is the exit code after an answer was printed.
func written(err error) error {
	if err != nil {
		return exitWith(exitFailed, err)
	}
	return nil
}
