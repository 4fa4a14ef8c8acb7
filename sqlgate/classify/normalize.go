package classify

import (
	"strconv"
	"strings"
)

// maxNormalized bounds a normalised text, in bytes: $100000 is longer than the
// 1 that it stands for, and the text has to fit into a record of the log. What
// is longer is cut at a token and ends in an ellipsis.
const maxNormalized = 256 << 10

const longestParam = len("$2147483647")

// normalized gives the statement for logs: every string, number, bit and dollar
// literal, and every word that is the value of a setting, is a parameter numbered on
// from the highest in the text, comments are gone, white space is one blank. No constant is left in it, so passwords and
// connection strings never reach a log.
func (s *scan) normalized(sql string) string {
	if s.Clean && s.End-s.Start <= maxNormalized {
		return sql[s.Start:s.End]
	}
	n := normalizer{sql: sql, lexer: newLexer(sql[:s.End]), param: s.HighestParam}
	n.lexer.pos = s.Start
	n.out.Grow(min(s.End-s.Start+16, maxNormalized))
	for n.token() {
	}
	return n.out.String()
}

type normalizer struct {
	sql   string
	lexer lexer
	param int
	set   setting
	out   strings.Builder
	after tokenKind // kind of the token written last
	end   int       // its end in the text
}

// token writes one token and tells whether there may be another.
func (n *normalizer) token() bool {
	kind := n.lexer.next()
	if kind == tokenEnd {
		return false
	}
	start, end := n.lexer.start, n.lexer.pos
	if n.out.Len()+max(end-start, longestParam)+1 > maxNormalized {
		n.out.WriteString(" …")
		return false
	}
	if n.out.Len() > 0 && (start > n.end || n.runsTogether(kind)) {
		n.out.WriteByte(' ')
	}
	if kind == tokenWord && n.introducesString() {
		n.lexer.next()
		kind, end = tokenString, n.lexer.pos
	}
	if n.set.value(kind, n.sql[start:end]) {
		kind = tokenString
	}
	if kind.isLiteral() {
		n.param++
		n.out.WriteByte('$')
		n.out.WriteString(strconv.Itoa(n.param))
	} else {
		n.out.WriteString(n.sql[start:end])
	}
	n.after, n.end = kind, end
	return true
}

// A setting finds the words that PostgreSQL takes as constants: values behind the = or
// TO of a SET need no quotes. In a text that begins with another word than these three
// SET is that of an UPDATE, whose words are columns.
type setting struct{ at settingPlace }

type settingPlace int

const (
	settingFirst   settingPlace = iota // before the text's first word
	settingNever                       // the text sets none
	settingOutside                     // before a SET
	settingName
	settingValue
	settingBehind // where a comma would have another value follow
)

// value takes the next token and tells whether it is such a word.
func (s *setting) value(kind tokenKind, text string) bool {
	is := func(word string) bool { return kind == tokenWord && strings.EqualFold(text, word) }
	switch s.at {
	case settingNever:
		return false
	case settingFirst:
		s.at = settingNever
		if is("set") || is("alter") || is("create") {
			s.at = settingOutside
		}
	case settingName:
		switch {
		case is("to") || kind == tokenOperator && text == "=":
			s.at = settingValue
			return false
		case kind == tokenWord || kind == tokenQuotedName || kind == tokenString || text == ".": // a string behind UESCAPE
			return false
		}
		s.at = settingOutside
	case settingValue:
		if kind == tokenOperator { // a sign
			return false
		}
		s.at = settingBehind
		return kind == tokenWord || kind == tokenQuotedName
	case settingBehind:
		if is("uescape") || kind == tokenString {
			return false
		}
		s.at = settingOutside
		if kind == tokenComma {
			s.at = settingValue
			return false
		}
	}
	if is("set") {
		s.at = settingName
	}
	return false
}

// introducesString tells whether the word just read is the N of N'text'.
func (n *normalizer) introducesString() bool {
	l := &n.lexer
	return l.pos-l.start == 1 && l.src[l.start]|0x20 == 'n' && l.at(0) == '\''
}

// runsTogether tells whether a token would join the parameter written before it,
// or as one the word before it: the quotes that kept them apart are gone.
func (n *normalizer) runsTogether(kind tokenKind) bool { return runTogether(n.after, kind) }

// runTogether tells whether two tokens without anything between them read as one,
// as the $1 and the x of $1x.
func runTogether(a, b tokenKind) bool {
	wordy := func(k tokenKind) bool { return k == tokenWord || k == tokenParam || k.isLiteral() }
	return wordy(a) && wordy(b)
}
