package classify

// readNumber reads the longest number at pos: decimal, hexadecimal, octal or
// binary with single underscores between digits, a fraction, an exponent.
// Letters that follow at once are an error of the server's lexer, so where they
// are cut does not matter.
func (l *lexer) readNumber() tokenKind {
	i := l.pos + 1
	for i < len(l.src) && l.src[i]-'0' <= 9 {
		i++
	}
	if i == len(l.src) || !mayGoOn(l.src[i]) {
		l.pos = i
		return tokenNumber
	}
	if l.src[l.pos] == '0' {
		if digits := baseDigits(l.at(1) | 0x20); digits != nil {
			if n := l.prefixedDigits(digits); n > 0 {
				l.pos += n
				return tokenNumber
			}
		}
	}
	plain := i
	l.pos = decimalEnd(l.src, i)
	// 1..2 is a range; behind an underscore the server's lexer does not know it
	if l.at(0) == '.' && (l.at(1) != '.' || l.pos != plain) {
		l.pos = decimalEnd(l.src, l.pos+1)
	}
	l.readExponent()
	return tokenNumber
}

// mayGoOn tells whether a number may hold the byte behind its first digits.
func mayGoOn(c byte) bool { return c == '.' || c == '_' || c|0x20 >= 'a' && c|0x20 <= 'z' }

// readDot reads .5 as a number, .. as one token and any other dot alone.
func (l *lexer) readDot() tokenKind {
	if classOf[l.at(1)] == byteDigit {
		l.pos = decimalEnd(l.src, l.pos+1)
		l.readExponent()
		return tokenNumber
	}
	if l.at(1) == '.' {
		l.pos++
	}
	l.pos++
	return tokenOther
}

func (l *lexer) readExponent() {
	if l.at(0)|0x20 != 'e' {
		return
	}
	n := 1
	if c := l.at(1); c == '+' || c == '-' {
		n++
	}
	if classOf[l.at(n)] == byteDigit {
		l.pos = decimalEnd(l.src, l.pos+n)
	}
}

// decimalEnd gives the end of digits with single underscores between them.
func decimalEnd(src string, i int) int {
	for i < len(src) {
		switch {
		case classOf[src[i]] == byteDigit:
			i++
		case src[i] == '_' && i > 0 && classOf[src[i-1]] == byteDigit && i+1 < len(src) && classOf[src[i+1]] == byteDigit:
			i++
		default:
			return i
		}
	}
	return i
}

func baseDigits(letter byte) func(byte) bool {
	switch letter {
	case 'x':
		return func(c byte) bool { return classOf[c] == byteDigit || c|0x20 >= 'a' && c|0x20 <= 'f' }
	case 'o':
		return func(c byte) bool { return c >= '0' && c <= '7' }
	case 'b':
		return func(c byte) bool { return c == '0' || c == '1' }
	}
	return nil
}

// prefixedDigits gives the length of 0x, 0o or 0b with at least one digit, or 0.
func (l *lexer) prefixedDigits(digit func(byte) bool) int {
	n := 2
	for {
		switch {
		case digit(l.at(n)):
			n++
		case l.at(n) == '_' && digit(l.at(n+1)):
			n += 2
		case n == 2:
			return 0
		default:
			return n
		}
	}
}
