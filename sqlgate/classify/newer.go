package classify

import (
	_ "embed" // the table below
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
)

// data/newer.tsv holds what PostgreSQL 17 and 18 can say and the grammar of 16
// can't. The parser refuses it either way; a row lets the refusal name what it
// met, whose it is, and how to do without. Its columns are the name for people,
// the first major, where the parser of 16 stumbles, what to write instead, and an
// example. `make grammars` holds the rows against the parsers of all four majors.
//
// A place is written as tokens of the text, several places with a semicolon
// between them:
//
//	WORD   that word, unquoted, in any case; A|B one of them
//	( , )  that character; * an operator or character that is written as it is
//	'      a constant in quotes
//	#      brackets with all that is in them
//	_      a word or a name in quotes
//	..     any number of tokens, out of no bracket that is open there
//	arg    the same, but at least one and no comma
//	^      the beginning of the text; ^K a vertical tab
//	@      in front of the token that the parser stumbles over; @; is the end
//
//go:embed data/newer.tsv
var newerTSV string

// A newerForm is a row of the table.
type newerForm struct {
	name, since, instead string
	places               []*regexp.Regexp
}

// newerForms gives the rows by the tokens that the parser stumbles over, or by
// the token in front where that may be any. The table is part of the binary and
// held by tests, so a row that can't be read is a panic.
var newerForms = sync.OnceValue(func() map[string][]*newerForm {
	rows, err := tsv(newerTSV, 5)
	if err != nil {
		panic(err)
	}
	forms := map[string][]*newerForm{}
	for _, r := range rows {
		f := &newerForm{name: r[0], since: r[1], instead: r[3]}
		for place := range strings.SplitSeq(r[2], "; ") {
			pattern, keys := readPlace(place)
			f.places = append(f.places, pattern)
			for _, key := range keys {
				if !slices.Contains(forms[key], f) {
					forms[key] = append(forms[key], f)
				}
			}
		}
	}
	return forms
})

// readPlace makes a regular expression for texts as shapeAt writes them, and the
// keys that newerForms has it by.
func readPlace(place string) (pattern *regexp.Regexp, keys []string) {
	var b strings.Builder
	place, whole := strings.CutPrefix(place, "^ ")
	if whole {
		b.WriteString("^")
	} else {
		b.WriteString(`(?:^|[^.] )`) // a name behind a dot is no keyword
	}
	before := ""
	for _, token := range strings.Fields(place) {
		if rest, ok := strings.CutPrefix(token, "@"); ok {
			b.WriteString("@")
			if token = rest; token == "_" {
				keys = []string{before + " _"}
			} else {
				keys = strings.Split(token, "|")
			}
		}
		switch token {
		case "..":
			b.WriteString(`(?:[^(\[ ]\S* )*?`)
		case "arg":
			b.WriteString(`(?:[^(\[ ,]\S* )+?`)
		case "_":
			b.WriteString(`["A-Z_\x{80}-\x{10ffff}]\S* `)
		default:
			words := strings.Split(token, "|")
			for i := range words {
				words[i] = regexp.QuoteMeta(words[i])
			}
			fmt.Fprintf(&b, "(?:%s) ", strings.Join(words, "|"))
		}
		before = token
	}
	return regexp.MustCompile(b.String()), keys
}

// newerAt gives the newer form that begins at a place where the parser stumbled,
// or nil. Whoever wrote the text may have meant something else, so where it is not
// sure nothing is said.
func newerAt(sql string, at int) *newerForm {
	left, right := tokensAround(sql, at)
	keys := []string{right[0].shape()}
	if len(left) > 0 {
		keys = append(keys, left[len(left)-1].shape()+" _")
	}
	var shape string
	for _, key := range keys {
		for _, f := range newerForms()[key] {
			if shape == "" {
				shape = shapeOf(left) + "@" + shapeOf(right)
			}
			if slices.ContainsFunc(f.places, func(place *regexp.Regexp) bool { return place.MatchString(shape) }) {
				return f
			}
		}
	}
	return nil
}

// How many tokens around a place are looked at, at most, brackets that are closed
// counted as one: what is further away says nothing of it.
const (
	tokensBefore = 800
	tokensBehind = 3
	longestShape = 63 // bytes of a word; no keyword is longer
)

// A lexeme is a token of a text, or brackets that are closed with all in them.
type lexeme struct {
	kind tokenKind
	text string
}

var (
	closedBrackets = lexeme{tokenClose, "#"}
	leftOut        = lexeme{tokenOther, "..."} // tokens that are too far away
)

// tokensAround gives the tokens before a place of the text, and those from it on.
// A text that ends there has a semicolon at the place.
func tokensAround(sql string, at int) (left, right []lexeme) {
	for l := newLexer(sql); len(right) <= tokensBehind; {
		kind := l.next()
		token := lexeme{kind, l.src[l.start:l.pos]}
		switch {
		case kind == tokenEnd:
			return left, append(right, lexeme{tokenSemicolon, ";"})
		case l.pos > at:
			right = append(right, token)
		case kind == tokenClose:
			left = closeBracket(left)
		default:
			left = append(left, token)
		}
		if len(left) > tokensBefore {
			left[0] = leftOut
			left = append(left[:1], left[len(left)/2:]...)
		}
	}
	return left, right
}

// closeBracket folds the innermost open bracket and what is in it into one token.
// Before a bracket that nothing opens there is nothing to look at.
func closeBracket(left []lexeme) []lexeme {
	for i := len(left) - 1; i >= 0; i-- {
		if left[i].kind == tokenOpen {
			return append(left[:i], closedBrackets)
		}
	}
	return left[:0]
}

// shapeOf writes tokens as the patterns of the table read them.
func shapeOf(tokens []lexeme) string {
	var b strings.Builder
	for _, t := range tokens {
		b.WriteString(t.shape() + " ")
	}
	return b.String()
}

// shape writes a word in capitals, and names what can be anything by its kind.
func (t lexeme) shape() string {
	switch {
	case len(t.text) > longestShape && t.kind == tokenWord:
		return `"`
	case t.kind == tokenWord:
		return strings.Map(upperASCII, t.text)
	case t.kind == tokenQuotedName:
		return `"`
	case t.kind == tokenNumber:
		return "0"
	case t.kind.isLiteral():
		return "'"
	case t.text == "\v":
		return "^K"
	case t.kind == tokenOperator && t.text != "*":
		return "+"
	default:
		return t.text
	}
}

// upperASCII is what PostgreSQL does to the case of keywords, the other way round.
func upperASCII(r rune) rune {
	if r >= 'a' && r <= 'z' {
		return r - 'a' + 'A'
	}
	return r
}
