package classify

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// A textFinding is a place where a person would read another text than
// PostgreSQL does. Subject is the character (U+202E) or the identifier.
type textFinding struct {
	At      int
	Subject string
}

// maxTextFindings is as many as a classification lists signals.
const maxTextFindings = 32

// confusables finds bidirectional controls anywhere, but for the marks that stand in
// strings of Hebrew or Arabic text; line ends that only a person sees, outside
// literals; characters without width and blanks that PostgreSQL takes for letters,
// outside literals and comments; and identifiers that mix Latin with letters that look
// alike. It reads the tokens of a text that the guard let pass and that is not plain
// ASCII.
func confusables(sql string) []textFinding {
	l := newLexer(sql)
	var found []textFinding
	for behind := 0; len(found) < maxTextFindings; behind = l.pos {
		kind := l.next()
		found = gapFindings(found, sql, behind, l.start)
		if kind == tokenEnd {
			break
		}
		found = tokenFindings(found, kind, sql[l.start:l.pos], l.start)
	}
	return found[:min(len(found), maxTextFindings)]
}

// gapFindings looks through comments, and white space, which is all ASCII. What is
// not seen in a comment is not run either; what looks like its end may be taken for one.
func gapFindings(found []textFinding, sql string, from, to int) []textFinding {
	return characterFindings(found, sql[from:to], from, func(r rune) bool { return isBidiControl(r) || isLineEnd(r) })
}

func tokenFindings(found []textFinding, kind tokenKind, token string, at int) []textFinding {
	switch {
	case kind == tokenString:
		return characterFindings(found, token, at, func(r rune) bool { return isBidiControl(r) && !isBidiMark(r) })
	case kind.isLiteral():
		return characterFindings(found, token, at, isBidiControl)
	}
	found = characterFindings(found, token, at, func(r rune) bool {
		return isBidiControl(r) || isInvisible(r) || isLineEnd(r) || kind == tokenWord && r > 0x7f && unicode.IsSpace(r)
	})
	if mixesAlphabets(token) {
		found = append(found, textFinding{At: at, Subject: cutAt(token, 63)})
	}
	return found
}

func characterFindings(found []textFinding, text string, at int, wrong func(rune) bool) []textFinding {
	for i, r := range text {
		if r > 0x7f && wrong(r) && len(found) < maxTextFindings {
			found = append(found, textFinding{At: at + i, Subject: fmt.Sprintf("U+%04X", r)})
		}
	}
	return found
}

// isBidiControl knows the characters that reorder what a person sees (Unicode
// Standard Annex 9, property Bidi_Control).
func isBidiControl(r rune) bool { return unicode.Is(unicode.Bidi_Control, r) }

// isBidiMark knows those that stand for one invisible letter: they order what is next
// to them as a Hebrew or an Arabic letter does, and nothing farther away.
func isBidiMark(r rune) bool { return r == 0x200e || r == 0x200f || r == 0x061c }

// isLineEnd knows what ends a line for some who show the text, and for no lexer.
func isLineEnd(r rune) bool { return r == 0x0085 || r == 0x2028 || r == 0x2029 }

// isInvisible knows characters that print nothing, or print as a blank that no
// lexer takes for one: zero-width, no-break and filler characters.
func isInvisible(r rune) bool {
	switch r {
	case 0x00a0, 0x2007, 0x202f, 0x2800: // of Braille, without a dot
		return true
	}
	return unicode.In(r, unicode.Cf, unicode.Other_Default_Ignorable_Code_Point)
}

// greekAlone are Greek letters that look like no Latin one: in names they are units
// and symbols (latency_μs, Δt).
const greekAlone = "ΓΔΘΛΞΠΣΦΨΩ\u2126δζθλμξπφψ"

// mixesAlphabets tells whether an identifier has Latin letters beside letters
// of an alphabet that look like them.
func mixesAlphabets(name string) bool {
	latin, other := false, false
	for i := 0; i < len(name); {
		r, n := utf8.DecodeRuneInString(name[i:])
		i += n
		switch {
		case r <= 0x7f:
			latin = latin || classOf[byte(r)] == byteName && r != '_'
		case unicode.Is(unicode.Latin, r):
			latin = true
		case strings.ContainsRune(greekAlone, r):
		case unicode.In(r, unicode.Cyrillic, unicode.Greek, unicode.Armenian):
			other = true
		}
	}
	return latin && other
}
