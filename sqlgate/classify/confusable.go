package classify

import (
	"fmt"
	"unicode"

	"writegate/sqlgate/lookalike"
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
// outside literals and comments; and identifiers that are not what they look like
// (package lookalike). It reads the tokens of a text that the guard let pass and that is not plain
// ASCII.
func confusables(sql string) []textFinding {
	l := newLexer(sql)
	names := namesOf(sql)
	var found []textFinding
	for behind := 0; len(found) < maxTextFindings; behind = l.pos {
		kind := l.next()
		found = gapFindings(found, sql, behind, l.start)
		if kind == tokenEnd {
			break
		}
		found = tokenFindings(found, kind, sql[l.start:l.pos], l.start, &names)
	}
	return found[:min(len(found), maxTextFindings)]
}

// namesOf gives the names of a text, or none where all of them are ASCII.
func namesOf(sql string) (names lookalike.Names) {
	l := newLexer(sql)
	var tokens []string
	ascii := true
	for kind := l.next(); kind != tokenEnd; kind = l.next() {
		if kind == tokenWord || kind == tokenQuotedName {
			tokens = append(tokens, sql[l.start:l.pos])
			ascii = ascii && isASCII(sql[l.start:l.pos])
		}
	}
	if ascii {
		return names
	}
	for _, token := range tokens {
		names.Add(token)
	}
	return names
}

// gapFindings looks through comments, and white space, which is all ASCII. What is
// not seen in a comment is not run either; what looks like its end may be taken for one.
func gapFindings(found []textFinding, sql string, from, to int) []textFinding {
	return characterFindings(found, sql[from:to], from, func(r rune) bool { return isBidiControl(r) || isLineEnd(r) })
}

func tokenFindings(found []textFinding, kind tokenKind, token string, at int, names *lookalike.Names) []textFinding {
	switch {
	case kind == tokenString:
		return characterFindings(found, token, at, func(r rune) bool { return isBidiControl(r) && !isBidiMark(r) })
	case kind.isLiteral():
		return characterFindings(found, token, at, isBidiControl)
	}
	found = characterFindings(found, token, at, func(r rune) bool {
		return isBidiControl(r) || isInvisible(r) || isLineEnd(r) || kind == tokenWord && r > 0x7f && unicode.IsSpace(r)
	})
	if (kind == tokenWord || kind == tokenQuotedName) && !isASCII(token) && (lookalike.HasStyled(token) || lookalike.Mixed(token) != nil || names.Alike(token)) {
		found = append(found, textFinding{At: at, Subject: cutAt(token, 63)})
	}
	return found
}

func characterFindings(found []textFinding, text string, at int, wrong func(rune) bool) []textFinding {
	before := rune(0)
	for i, r := range text {
		if r > 0x7f && wrong(r) && len(found) < maxTextFindings && !lookalike.Chooses(before, r) {
			found = append(found, textFinding{At: at + i, Subject: fmt.Sprintf("U+%04X", r)})
		}
		before = r
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
// lexer takes for one: no-break blanks, and what lookalike.Invisible knows.
func isInvisible(r rune) bool {
	return r == 0x00a0 || r == 0x2007 || r == 0x202f || lookalike.Invisible(r)
}
