package classify

import "strings"

// A tokenKind is what the guard needs to know about a token: which bytes are a
// literal, which are a name, which nest. It is no grammar.
type tokenKind uint8

const (
	tokenEnd tokenKind = iota
	tokenWord
	tokenQuotedName // "x" and U&"x"
	tokenString     // 'x', E'x', U&'x'; the quotes of N'x' (its N is a word, as in PostgreSQL)
	tokenBits       // B'x' and X'x'
	tokenDollar     // $tag$x$tag$
	tokenNumber
	tokenParam    // $1
	tokenOperator // as PostgreSQL cuts runs of operator characters
	tokenOpen     // ( and [
	tokenClose    // ) and ]
	tokenComma
	tokenSemicolon
	tokenCast  // ::
	tokenOther // every other single character, and .. and :=
)

// isLiteral tells whether a token's text is a constant.
func (k tokenKind) isLiteral() bool { return k >= tokenString && k <= tokenNumber }

// A byteClass says how a token that begins with the byte is read.
type byteClass uint8

const (
	byteOther byteClass = iota
	byteSpace
	byteName // may begin an identifier: letters, _ and everything above ASCII
	byteDigit
	byteOperator
	byteQuote
	byteDoubleQuote
	byteDollar
	byteOpen
	byteClose
	byteComma
	byteSemicolon
	byteColon
	byteDot
)

var classOf = makeByteClasses()

func makeByteClasses() (t [256]byteClass) {
	put := func(class byteClass, bytes string) {
		for i := range len(bytes) {
			t[bytes[i]] = class
		}
	}
	for c := 0x80; c <= 0xff; c++ {
		t[c] = byteName
	}
	put(byteName, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_")
	put(byteDigit, "0123456789")
	put(byteSpace, " \t\n\r\f")
	put(byteOperator, "~!@#^&|`?+-*/%<>=")
	put(byteOpen, "([")
	put(byteClose, ")]")
	put(byteQuote, "'")
	put(byteDoubleQuote, `"`)
	put(byteDollar, "$")
	put(byteComma, ",")
	put(byteSemicolon, ";")
	put(byteColon, ":")
	put(byteDot, ".")
	return t
}

// A mark is a place in the text and the number that was found there; at is -1
// while there is nothing to tell.
type mark struct{ at, got int }

// A lexer cuts a text into the tokens of PostgreSQL 16 with
// standard_conforming_strings on (the server's src/backend/parser/scan.l) and
// counts on the way what the server's own lexer would cost. It neither refuses
// nor allocates; the guard judges what it counted.
type lexer struct {
	src   string
	pos   int // first byte not read yet
	start int // first byte of the token that next returned

	runEnd     int // end of the run of operator characters measured last, comments included
	segmentEnd int // end of that run's part before a comment

	work         int  // characters the server's lexer reads in runs, again and again
	workAt       int  // where work passed its limit
	commentDepth mark // deepest nesting; at is where it passed the limit
	operator     mark // first run outside comments that is too long
	unterminated mark // start of a quote or comment without end
	ambiguous    mark // start of a literal that is joined over a comment
	open         string
}

func newLexer(src string) lexer {
	return lexer{src: src, workAt: -1, commentDepth: mark{at: -1}, operator: mark{at: -1}, unterminated: mark{at: -1}, ambiguous: mark{at: -1}}
}

// next reads one token, with the white space and comments before it.
func (l *lexer) next() tokenKind {
	for l.pos < len(l.src) {
		l.start = l.pos
		switch classOf[l.src[l.pos]] {
		case byteSpace:
			l.pos++
		case byteOperator:
			if !l.skipComment() {
				return l.readOperator()
			}
		case byteName:
			return l.readName()
		case byteDigit:
			return l.readNumber()
		case byteDot:
			return l.readDot()
		case byteQuote:
			return l.readQuoted(tokenString, 1, false)
		case byteDoubleQuote:
			return l.readQuotedName(1)
		case byteDollar:
			return l.readDollar()
		case byteColon:
			return l.readColon()
		default:
			return l.readSingle()
		}
	}
	l.start = l.pos
	return tokenEnd
}

func (l *lexer) readSingle() tokenKind {
	c := classOf[l.src[l.pos]]
	l.pos++
	switch c {
	case byteOpen:
		return tokenOpen
	case byteClose:
		return tokenClose
	case byteComma:
		return tokenComma
	case byteSemicolon:
		return tokenSemicolon
	}
	return tokenOther
}

// at gives the byte i behind pos, or 0 behind the end. No text has a NUL here.
func (l *lexer) at(i int) byte {
	if l.pos+i < len(l.src) {
		return l.src[l.pos+i]
	}
	return 0
}

func (l *lexer) readColon() tokenKind {
	switch l.at(1) {
	case ':':
		l.pos += 2
		return tokenCast
	case '=':
		l.pos += 2
	default:
		l.pos++
	}
	return tokenOther
}

func isNameByte(c byte) bool {
	k := classOf[c]
	return k == byteName || k == byteDigit || c == '$'
}

// readName reads an identifier or keyword, or the literal that its first
// letters introduce.
func (l *lexer) readName() tokenKind {
	switch l.src[l.pos] | 0x20 {
	case 'e':
		if l.at(1) == '\'' {
			return l.readQuoted(tokenString, 2, true)
		}
	case 'b', 'x':
		if l.at(1) == '\'' {
			return l.readQuoted(tokenBits, 2, false)
		}
	case 'u':
		if l.at(1) == '&' && l.at(2) == '\'' {
			return l.readQuoted(tokenString, 3, false)
		}
		if l.at(1) == '&' && l.at(2) == '"' {
			return l.readQuotedName(3)
		}
	}
	i := l.pos + 1
	for i < len(l.src) && isNameByte(l.src[i]) {
		i++
	}
	l.pos = i
	return tokenWord
}

// readQuoted reads a quoted literal whose opening quote is the last of the
// first n bytes. A doubled quote belongs to a string and ends a bit string;
// only a backslash in an E string hides the byte behind it.
func (l *lexer) readQuoted(kind tokenKind, n int, backslashes bool) tokenKind {
	i := l.pos + n
	for i < len(l.src) {
		switch c := l.src[i]; {
		case c == '\\' && backslashes:
			i += 2
		case c != '\'':
			i++
		case kind == tokenString && i+1 < len(l.src) && l.src[i+1] == '\'':
			i += 2
		default:
			next, joined := l.continuation(i + 1)
			if !joined {
				l.pos = i + 1
				return kind
			}
			i = next
		}
	}
	return l.endless(kind, "quoted string")
}

// continuation looks behind a closing quote for white space with a line end and
// another quote: SQL joins the two literals into one, in the state of the
// first. It gives the first byte behind the quote that opens again. A comment
// between them is white space for the server and parts them for pg_query, whose
// lexer makes a token of it; such a text has two readings and is refused.
func (l *lexer) continuation(i int) (next int, joined bool) {
	newline, comment := false, false
	for i < len(l.src) {
		switch c := l.src[i]; {
		case c == '\n' || c == '\r':
			newline = true
			i++
		case classOf[c] == byteSpace:
			i++
		case c == '-' && i+1 < len(l.src) && l.src[i+1] == '-':
			comment = true
			i = lineEnd(l.src, i)
		default:
			joined = newline && c == '\''
			if joined && comment && l.ambiguous.at < 0 {
				l.ambiguous.at = l.start
			}
			return i + 1, joined
		}
	}
	return i, false
}

// lineEnd gives the first line feed or carriage return from i on, or the end.
func lineEnd(src string, i int) int {
	if n := strings.IndexAny(src[i:], "\n\r"); n >= 0 {
		return i + n
	}
	return len(src)
}

func (l *lexer) readQuotedName(n int) tokenKind {
	i := l.pos + n
	for i < len(l.src) {
		if l.src[i] != '"' {
			i++
			continue
		}
		if i+1 == len(l.src) || l.src[i+1] != '"' {
			l.pos = i + 1
			return tokenQuotedName
		}
		i += 2
	}
	return l.endless(tokenQuotedName, "quoted identifier")
}

// endless notes a token that has no end and takes the rest of the text for it.
func (l *lexer) endless(kind tokenKind, what string) tokenKind {
	l.unterminated, l.open = mark{at: l.start}, what
	l.pos = len(l.src)
	return kind
}

// readDollar reads $1, $tag$...$tag$ or a lone $. An identifier in front would
// have taken the $ along, so none is there.
func (l *lexer) readDollar() tokenKind {
	i := l.pos + 1
	if i < len(l.src) && classOf[l.src[i]] == byteDigit {
		for i < len(l.src) && classOf[l.src[i]] == byteDigit {
			i++
		}
		l.pos = i
		return tokenParam
	}
	for i < len(l.src) && l.src[i] != '$' && isNameByte(l.src[i]) {
		i++
	}
	if i == len(l.src) || l.src[i] != '$' {
		l.pos++
		return tokenOther
	}
	tag := l.src[l.pos : i+1]
	n := strings.Index(l.src[i+1:], tag)
	if n < 0 {
		return l.endless(tokenDollar, "dollar-quoted string")
	}
	l.pos = i + 1 + n + len(tag)
	return tokenDollar
}
