package classify

import "strings"

// skipComment skips the comment that begins at pos, if one does.
func (l *lexer) skipComment() bool {
	switch next := l.at(1); {
	case l.src[l.pos] == '-' && next == '-':
		l.addWork(l.runLeft())
		l.pos = lineEnd(l.src, l.pos)
		return true
	case l.src[l.pos] == '/' && next == '*':
		l.skipBlockComment()
		return true
	}
	return false
}

// skipBlockComment skips a comment with those nested in it. Behind every
// slash-star the server's lexer reads the whole run of operator characters
// before it puts them back; the outermost is an operator character as well.
func (l *lexer) skipBlockComment() {
	l.addWork(l.runLeft())
	for depth := 0; l.pos < len(l.src); {
		switch c := l.src[l.pos]; {
		case c == '/' && l.at(1) == '*':
			depth++
			l.addWork(l.runLeft())
			l.noteCommentDepth(depth)
			l.pos += 2
		case c == '*' && l.at(1) == '/':
			depth--
			l.pos += 2
			if depth == 0 {
				return
			}
		default:
			l.pos++
		}
	}
	l.endless(tokenEnd, "/* comment")
}

// runLeft counts the operator characters from pos to the end of their run.
func (l *lexer) runLeft() int {
	if l.pos >= l.runEnd {
		i := l.pos
		for i < len(l.src) && classOf[l.src[i]] == byteOperator {
			i++
		}
		l.runEnd = i
	}
	return l.runEnd - l.pos
}

func (l *lexer) addWork(n int) {
	l.work += n
	if l.work > maxLexerWork && l.workAt < 0 {
		l.workAt = l.pos
	}
}

func (l *lexer) noteCommentDepth(depth int) {
	l.commentDepth.got = max(l.commentDepth.got, depth)
	if depth > maxCommentDepth && l.commentDepth.at < 0 {
		l.commentDepth.at = l.pos
	}
}

// readOperator reads one operator of the run at pos. A run that is too long is
// taken whole: its text is refused, and cutting it would be quadratic here too.
func (l *lexer) readOperator() tokenKind {
	if l.pos >= l.segmentEnd {
		l.measureSegment()
	}
	if l.segmentEnd-l.pos > maxOperatorLength {
		l.pos = l.segmentEnd
		return tokenOperator
	}
	l.pos += operatorLength(l.src[l.pos:l.segmentEnd])
	return tokenOperator
}

// measureSegment looks once at the operator characters from pos to the next
// comment or the end of their run. At each of them an operator may begin, and
// for each the server's lexer reads to the end of the run.
func (l *lexer) measureSegment() {
	left := l.runLeft()
	n := left
	run := l.src[l.pos:l.runEnd]
	for _, opener := range [...]string{"--", "/*"} {
		if i := strings.Index(run, opener); i >= 0 {
			n = min(n, i)
			run = run[:i]
		}
	}
	l.segmentEnd = l.pos + n
	l.addWork(n*left - n*(n-1)/2)
	if n > maxOperatorLength && l.operator.at < 0 {
		l.operator = mark{at: l.pos, got: n}
	}
}

// operatorLength cuts one operator off a run without comments: + and - end an
// operator of several characters only if it holds one that standard SQL lacks.
func operatorLength(run string) int {
	n := len(run)
	last := run[n-1]
	if n == 1 || last != '+' && last != '-' || strings.ContainsAny(run, "~!@#^&|`?%") {
		return n
	}
	for n > 1 && (run[n-1] == '+' || run[n-1] == '-') {
		n--
	}
	return n
}
