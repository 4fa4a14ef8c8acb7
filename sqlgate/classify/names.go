package classify

import (
	"slices"
	"strings"
)

// Names are the words and operators of a text, whatever they stand for.
type Names struct {
	Words     []string // as the server reads them: folded, or as they are quoted
	Operators []string
	Strings   bool // it has a string constant, whose type its place gives
	Unsure    bool // one of them is written in a way that is not read here
}

// longestName is what the server keeps of a name, in bytes.
const longestName = 63

// NamesOf reads the names of a text that was classified. Whoever has to know that
// a statement means nothing but what is built in can ask the server whether
// anything of its own bears one of them.
func NamesOf(sql string) Names {
	var n Names
	l := newLexer(sql)
	for {
		kind := l.next()
		text := l.src[l.start:l.pos]
		switch kind {
		case tokenEnd:
			for _, list := range []*[]string{&n.Words, &n.Operators} {
				slices.Sort(*list)
				*list = slices.Compact(*list)
			}
			return n
		case tokenWord:
			n.word(asciiLower(text))
		case tokenQuotedName:
			if text[0] != '"' { // U&"..."
				n.Unsure = true
				continue
			}
			n.word(strings.ReplaceAll(text[1:len(text)-1], `""`, `"`))
		case tokenOperator:
			n.Operators = append(n.Operators, text)
		case tokenString, tokenDollar:
			n.Strings = true
		}
	}
}

func (n *Names) word(w string) {
	n.Unsure = n.Unsure || len(w) > longestName
	n.Words = append(n.Words, w)
}

// asciiLower folds a name as the server does where the encoding is UTF-8.
func asciiLower(s string) string {
	return strings.Map(func(c rune) rune {
		if c >= 'A' && c <= 'Z' {
			return c + 'a' - 'A'
		}
		return c
	}, s)
}
