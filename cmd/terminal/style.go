package terminal

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/term"
)

// A Style paints words where a person reads them at a terminal, and leaves them
// alone everywhere else.
type Style struct{ painted bool }

// StyleFor judges an output. Colour is left out where the output is no
// terminal, where NO_COLOR is set to anything (https://no-color.org), and on a
// terminal that calls itself dumb.
func StyleFor(out io.Writer, environ []string) Style {
	f, ok := out.(*os.File)
	return Style{painted: ok && term.IsTerminal(int(f.Fd())) && wantsColour(environ)}
}

func wantsColour(environ []string) bool {
	return !slices.ContainsFunc(environ, func(pair string) bool {
		name, value, _ := strings.Cut(pair, "=")
		return name == "NO_COLOR" && value != "" || name == "TERM" && value == "dumb"
	})
}

func (s Style) paint(code, text string) string {
	if !s.painted || text == "" {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

// Printable tells whether a text holds nothing but what is seen.
func Printable(text string) bool {
	return !strings.ContainsFunc(text, func(r rune) bool { return !isSeen(r) })
}

// isSeen knows of fillers and variation selectors, too, which count as letters and marks.
func isSeen(r rune) bool {
	return unicode.IsPrint(r) && !unicode.In(r, unicode.Variation_Selector, unicode.Other_Default_Ignorable_Code_Point)
}

// Visible writes out by its number, as in ⟨U+001B⟩, what could steer a terminal, or begin a
// line of its own: what others have named may hold anything.
func Visible(text string) string {
	if Printable(text) {
		return text
	}
	var b strings.Builder
	for _, r := range text {
		if isSeen(r) {
			b.WriteRune(r)
			continue
		}
		fmt.Fprintf(&b, "⟨U+%04X⟩", r)
	}
	return b.String()
}

// Bold and the others give the text in that form.
func (s Style) Bold(text string) string   { return s.paint("1", text) }
func (s Style) Faint(text string) string  { return s.paint("2", text) }
func (s Style) Red(text string) string    { return s.paint("1;31", text) }
func (s Style) Green(text string) string  { return s.paint("32", text) }
func (s Style) Yellow(text string) string { return s.paint("33", text) }
func (s Style) Cyan(text string) string   { return s.paint("36", text) }

// A Cell is one field of a table. Paint is one of a Style's forms, nil for none.
type Cell struct {
	Text  string
	Paint func(string) string
	Right bool // numbers stand right
}

// Plain makes cells without paint.
func Plain(texts ...string) []Cell {
	cells := make([]Cell, len(texts))
	for i, text := range texts {
		cells[i].Text = text
	}
	return cells
}

// Number is a cell that stands right.
func Number(n int) Cell { return Cell{Text: fmt.Sprint(n), Right: true} }

// PrintTable writes rows as columns, each as wide as its widest field and
// indented by two. The width is counted before anything is painted.
func PrintTable(w io.Writer, rows [][]Cell) error {
	var widths []int
	for _, row := range rows {
		for i, c := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(c.Text))
		}
	}
	var b strings.Builder
	for _, row := range rows {
		line := ""
		for i, c := range row {
			line += "  " + c.padded(widths[i], i == len(row)-1)
		}
		b.WriteString(strings.TrimRight(line, " ") + "\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// padded is the field at its width; the last of a row leaves no blanks behind.
func (c Cell) padded(width int, last bool) string {
	text, blanks := c.Text, strings.Repeat(" ", width-utf8.RuneCountInString(c.Text))
	if c.Paint != nil {
		text = c.Paint(text)
	}
	switch {
	case c.Right:
		return blanks + text
	case last:
		return text
	}
	return text + blanks
}
