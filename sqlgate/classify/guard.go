package classify

import (
	"strings"
	"unicode/utf8"

	"writegate/commands/fault"
)

// Limits of part 3 of design/classification.md. The largest values in the
// 42,675 statements of PostgreSQL's own regression suite are 48 for the lexer's
// work, 3 for comments and 29 for the depth bound.
const (
	maxCommentDepth   = 32
	maxLexerWork      = 1_000_000
	maxOperatorLength = 63
	maxBracketDepth   = 1_000
)

// A scan is what the guard learnt about a text that it let pass.
type scan struct {
	Written      int  // upper bound of the tokens that the parser's answer holds, in bytes
	Start, End   int  // from the first token to the end of the last that is no semicolon
	Depth        int  // upper bound of the tree's depth, in units of eight JSON objects
	HighestParam int  // largest n of $n
	Clean        bool // no constant, no comment, blanks one by one: the text is its own normalised form
	Confusable   []textFinding
	literalAt    [len(literalForms)]int // place of the first literal of each form, from 1; 0 = none
}

// guard reads the text once, as PostgreSQL's lexer would, and refuses what
// could harm the parser behind it: it stands in front of every cgo call.
func guard(sql string, maxBytes int) (scan, *fault.Fault) {
	if len(sql) > maxBytes {
		return scan{}, refuseSize(len(sql), maxBytes)
	}
	ascii, f := checkEncoding(sql)
	if f != nil {
		return scan{}, f
	}
	l := newLexer(sql)
	d := depthMeter{brackets: mark{at: -1}}
	m := newSharedMeter()
	s := scan{Start: -1, Clean: true}
	s.read(&l, &d, &m)
	if f := judge(&l, &d, s.Start); f != nil {
		return scan{}, f
	}
	if s.Written = m.total; s.Written > maxBytes {
		return scan{}, refuseLimit(limitSharedSource, -1, s.Written, maxBytes)
	}
	s.Depth = d.total()
	if !ascii {
		s.Confusable = confusables(sql)
	}
	return s, nil
}

// read takes all tokens of the text.
func (s *scan) read(l *lexer, d *depthMeter, m *sharedMeter) {
	last := tokenEnd
	var set setting
	for {
		kind := l.next()
		if kind != tokenEnd {
			m.take(kind, l.src[l.start:l.pos])
		}
		switch kind {
		case tokenEnd:
			return
		case tokenSemicolon:
			continue
		case tokenWord:
			d.word(l.src[l.start:l.pos])
		case tokenOperator:
			d.chain += l.pos - l.start
		case tokenCast:
			d.chain++
		case tokenOpen:
			d.opened(l.start)
		case tokenClose:
			d.closed()
		case tokenComma:
			d.comma()
		case tokenNumber, tokenString:
			if form := literalForm(l.src[l.start:l.pos]); form >= 0 && s.literalAt[form] == 0 {
				s.literalAt[form] = l.start + 1
			}
		case tokenParam:
			s.HighestParam = max(s.HighestParam, paramNumber(l.src[l.start+1:l.pos]))
		}
		if s.Start < 0 {
			s.Start, s.End = l.start, l.start
		}
		s.Clean = s.Clean && !set.value(kind, l.src[l.start:l.pos]) && !kind.isLiteral() && isOneBlank(l.src[s.End:l.start]) && !(s.End == l.start && runTogether(last, kind))
		last, s.End = kind, l.pos
	}
}

// isOneBlank tells whether what stands between two tokens needs no change.
func isOneBlank(gap string) bool { return gap == "" || gap == " " }

// judge applies the limits in the order of the design's table.
func judge(l *lexer, d *depthMeter, first int) *fault.Fault {
	switch {
	case first < 0 && l.unterminated.at < 0:
		return refuseEmpty()
	case l.unterminated.at >= 0:
		return refuseUnterminated(l.open, l.unterminated.at)
	case l.commentDepth.at >= 0:
		return refuseLimit(limitCommentDepth, l.commentDepth.at, l.commentDepth.got, maxCommentDepth)
	case l.workAt >= 0:
		return refuseLimit(limitLexerWork, l.workAt, l.work, maxLexerWork)
	case l.operator.at >= 0:
		return refuseLimit(limitOperatorLength, l.operator.at, l.operator.got, maxOperatorLength)
	case d.brackets.at >= 0:
		return refuseLimit(limitBracketDepth, d.brackets.at, d.brackets.got, maxBracketDepth)
	case l.ambiguous.at >= 0:
		return refuseAmbiguous(l.ambiguous.at)
	}
	return nil
}

// checkEncoding refuses what PostgreSQL could not take as UTF-8 and NUL, which
// would end the text for the parser and not for whoever reads the log.
func checkEncoding(sql string) (ascii bool, f *fault.Fault) {
	if i := strings.IndexByte(sql, 0); i >= 0 {
		return false, refuseText("The SQL text holds a NUL byte. Remove it.", i)
	}
	if isASCII(sql) {
		return true, nil
	}
	if !utf8.ValidString(sql) {
		return false, refuseText("The SQL text is not valid UTF-8. Send it in UTF-8.", invalidAt(sql))
	}
	return false, nil
}

func isASCII(s string) bool {
	for len(s) >= 8 {
		if (s[0]|s[1]|s[2]|s[3]|s[4]|s[5]|s[6]|s[7])&0x80 != 0 {
			return false
		}
		s = s[8:]
	}
	for i := range len(s) {
		if s[i]&0x80 != 0 {
			return false
		}
	}
	return true
}

func invalidAt(s string) int {
	for i, r := range s {
		if r == utf8.RuneError {
			if _, n := utf8.DecodeRuneInString(s[i:]); n == 1 {
				return i
			}
		}
	}
	return len(s)
}

// paramNumber reads the n of $n; what PostgreSQL could not hold in 31 bits is
// the largest it could.
func paramNumber(digits string) int {
	n := 0
	for i := range len(digits) {
		n = n*10 + int(digits[i]-'0')
		if n > 1<<31-1 {
			return 1<<31 - 1
		}
	}
	return n
}
