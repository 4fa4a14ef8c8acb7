package policy

import (
	"strconv"
	"unicode"
)

// scriptOf is the script of a letter as far as look-alikes go, 0 for whatever
// ends a word.
func scriptOf(c rune) int {
	switch {
	case c < 0x80 && (c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'):
		return 1
	case c < 0x80:
		return 0
	case unicode.Is(unicode.Latin, c):
		return 1
	case unicode.In(c, unicode.Cyrillic, unicode.Greek, unicode.Armenian):
		return 2
	case unicode.IsLetter(c):
		return 3
	default:
		return 0
	}
}

func mixesScripts(word string) bool {
	var latin, lookAlike bool
	for _, c := range word {
		switch scriptOf(c) {
		case 1:
			latin = true
		case 2:
			lookAlike = true
		}
	}
	return latin && lookAlike
}

func itoa(i int) string { return strconv.Itoa(i) }
