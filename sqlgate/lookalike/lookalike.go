// Package lookalike knows what of a text a person reads as something else than a
// program does: characters that cannot be seen, letters that look like ASCII ones,
// names that mix alphabets, and names of one statement that look the same.
package lookalike

import (
	"slices"
	"strings"
	"unicode"

	"golang.org/x/text/unicode/norm"
)

// Invisible tells of a character that shows nothing itself: marks of direction,
// joiners, fillers, variation selectors and what else Unicode says is ignored where a
// font does not know it.
func Invisible(r rune) bool {
	return r > unicode.MaxASCII && (slices.Contains(blanks, r) || unicode.In(r, unicode.Cf, unicode.Variation_Selector, unicode.Other_Default_Ignorable_Code_Point))
}

// blanks are characters of their own that look like one: of Braille, of the scripts of
// Egypt and of the Khitan, and a note without a head.
var blanks = []rune{0x2800, 0x13441, 0x13442, 0x16fe4, 0x1d159}

// Chooses tells of a variation selector behind a sign, whose picture it chooses (✔️).
// Behind a letter it cannot be seen.
func Chooses(before, r rune) bool {
	return (r == 0xfe0e || r == 0xfe0f) && before > unicode.MaxASCII && unicode.In(before, unicode.So, unicode.Sm, unicode.Po)
}

// nameBytes are those of a name that a server looks at, with its quotes.
const nameBytes = 63 + 2

// asRead is as much of a name as a server looks at.
func asRead(name string) string {
	if len(name) <= nameBytes {
		return name
	}
	end := nameBytes
	for end > 0 && name[end]&0xc0 == 0x80 {
		end--
	}
	return name[:end]
}

// ASCII is the text that a character of no ASCII looks like, or "".
func ASCII(r rune) string {
	if form := Styled(r); form != "" || r <= unicode.MaxASCII {
		return form
	}
	if r >= 0xab70 && r <= 0xabbf { // the small letters of Cherokee are its capitals, smaller
		r -= 0xab70 - 0x13a0
	}
	if letters[r] == 0 {
		return ""
	}
	return string(letters[r])
}

// Styled is the ASCII text of which a character is another form (Unicode Standard Annex
// 15, NFKC), or "": full-width letters, those of mathematics, ligatures.
func Styled(r rune) string {
	if r <= unicode.MaxASCII || unicode.Is(apart, r) {
		return ""
	}
	form := norm.NFKC.PropertiesString(string(r)).Decomposition()
	for _, c := range form {
		if c <= ' ' || c > '~' {
			return ""
		}
	}
	return string(form)
}

// apart are forms that nobody takes for plain ones, and that names have: raised and
// lowered digits, ª and º, №, TM in small, circled ones and squares of units.
var apart = &unicode.RangeTable{
	R16: []unicode.Range16{{0xaa, 0xaa, 1}, {0xb2, 0xb3, 1}, {0xb9, 0xba, 1}, {0x2070, 0x2070, 1}, {0x2074, 0x2079, 1}, {0x2080, 0x2089, 1}, {0x2116, 0x2116, 1},
		{0x2120, 0x2122, 1}, {0x2460, 0x24ea, 1}, {0x3250, 0x33ff, 1}},
	R32:         []unicode.Range32{{0x1f100, 0x1f1ff, 1}},
	LatinOffset: 3,
}

// HasStyled tells whether a name, with its quotes if it has them, holds other forms of
// ASCII. Between quotes punctuation may have one, and beside letters of East Asia
// full-width letters and the numbers of Rome are what people write there.
func HasStyled(name string) bool {
	name = asRead(name)
	quoted := strings.Contains(name, `"`)
	eastern := strings.ContainsFunc(name, func(r rune) bool {
		return unicode.In(r, unicode.Han, unicode.Hiragana, unicode.Katakana, unicode.Hangul, unicode.Bopomofo)
	})
	return strings.ContainsFunc(name, func(r rune) bool {
		form := Styled(r)
		return form != "" && !(quoted && strings.ContainsFunc(form, isPunctuation)) && !(eastern && (r >= 0xff01 && r <= 0xff5e || r >= 0x2160 && r <= 0x217f))
	})
}

func isPunctuation(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) }

// An alphabet is one of those that share their looks.
var alphabets = []struct {
	name string
	is   func(r rune) bool
}{
	{"Armenian", in(unicode.Armenian)}, {"Cherokee", in(unicode.Cherokee)}, {"Coptic", in(unicode.Coptic)}, {"Cyrillic", in(unicode.Cyrillic)}, {"Deseret", in(unicode.Deseret)},
	{"Greek", func(r rune) bool { return unicode.Is(unicode.Greek, r) && !strings.ContainsRune(greekAlone, r) }},
	{"Latin", func(r rune) bool { return unicode.Is(unicode.Latin, r) && !isPhonetic(r) }},
	{"Lisu", in(unicode.Lisu)},
	{"phonetic", isPhonetic},
}

func in(table *unicode.RangeTable) func(rune) bool {
	return func(r rune) bool { return unicode.Is(table, r) }
}

// greekAlone are Greek letters that look like no Latin one: in names they are units
// and symbols (latency_μs, Δt).
const greekAlone = "ΓΔΘΛΞΠΣΦΨΩ\u2126δζθλμξπφψ"

// isPhonetic knows Latin letters that stand in no language's words and look like others:
// small capitals, and the a and g of phonetics.
func isPhonetic(r rune) bool {
	return r >= 0x1d00 && r <= 0x1d2b && unicode.Is(unicode.Latin, r) || r > unicode.MaxASCII && strings.ContainsRune("ɑɡɢʙʜɪʟɴʀʏꜰꜱ", r)
}

// Mixed gives the alphabets of a name or word, in order, where letters of several that
// share their looks stand in it.
func Mixed(name string) []string {
	var found []string
	for _, r := range asRead(name) {
		if !unicode.IsLetter(r) {
			continue
		}
		for _, a := range alphabets {
			if !slices.Contains(found, a.name) && a.is(r) {
				found = append(found, a.name)
			}
		}
	}
	if len(found) < 2 {
		return nil
	}
	slices.Sort(found)
	return found
}

// LooksLatin tells of a word that has no Latin letter and only such as most people take
// for one.
func LooksLatin(word string) bool {
	return !strings.ContainsFunc(word, func(r rune) bool {
		return ASCII(r) == "" || unicode.Is(unicode.Latin, r) || strings.ContainsRune(near, r)
	})
}

// near are letters whose words are read as what they are, though one of them alone may
// be taken for an ASCII letter.
const near = "бгзкмнптьքցգզռա"

// Names are the names of one statement, to find those that look like another one. The
// zero value is empty.
type Names struct {
	groups map[string]*group // by what a name looks like
	last   string            // name that was added
}

// A group is of names that look the same.
type group struct {
	first   string // as plain spells it
	several bool   // one of them is another name
}

// Add takes the next name or keyword of a statement, with its quotes if it has them.
func (n *Names) Add(token string) {
	before := n.last
	n.last = token
	if isOfGrammar(before, token) {
		return
	}
	seen, plain := look(token), plain(token)
	g := n.groups[seen]
	switch {
	case g == nil:
		if n.groups == nil {
			n.groups = map[string]*group{}
		}
		n.groups[seen] = &group{first: plain}
	case g.first != plain && !g.several:
		g.several = !sameScript(g.first, plain)
	}
}

// Alike tells of a name that is no ASCII whether another name looks like it.
func (n *Names) Alike(token string) bool {
	if len(n.groups) == 0 || !strings.ContainsFunc(token, func(r rune) bool { return r > unicode.MaxASCII }) {
		return false
	}
	g := n.groups[look(token)]
	return g != nil && g.several
}

// isOfGrammar knows keywords that words of Russian and Greek look like (ВУ, ТО, ΙΝ) where
// they are no names.
func isOfGrammar(before, token string) bool {
	switch strings.ToUpper(token) {
	case "TO", "IN", "ON":
		return true
	case "BY":
		return slices.Contains([]string{"ORDER", "GROUP", "PARTITION"}, strings.ToUpper(before))
	}
	return false
}

// look is what a reader sees of a name, plain what it is; neither tells apart what ASCII
// has alike (1, l and I, 0 and O) nor capitals, by which alone no name is found. The
// compatible forms of letters that are no ASCII are left: some are sentences.
func look(name string) string {
	var seen strings.Builder
	for _, r := range norm.NFC.String(strings.Trim(asRead(name), `"`)) {
		form := ASCII(r)
		switch {
		case r == 0xb5: // micro
			form = "\u03bc"
		case form == "":
			form = string(r)
		}
		for _, c := range form {
			seen.WriteRune(twin(c))
		}
	}
	return seen.String()
}

func plain(name string) string { return strings.Map(twin, strings.Trim(asRead(name), `"`)) }

func twin(r rune) rune {
	switch r = lower(r); r {
	case 'i', '1':
		return 'l'
	case '0':
		return 'o'
	}
	return r
}

// lower leaves signs such as Ohm's alone, which are capitals of letters that have others.
func lower(r rune) rune {
	if small := unicode.ToLower(r); unicode.ToUpper(small) == r {
		return small
	}
	return r
}

// sameScript tells whether two names are wholly of one alphabet, so that whoever reads
// it knows their letters apart. Latin and Cyrillic have letters of languages and times
// that their other readers do not know.
func sameScript(a, b string) bool {
	for _, table := range []*unicode.RangeTable{unicode.Greek, unicode.Armenian, unicode.Arabic, unicode.Hebrew, unicode.Cherokee, unicode.Lisu, unicode.Canadian_Aboriginal, unicode.Coptic} {
		other := func(r rune) bool { return unicode.IsLetter(r) && !unicode.Is(table, r) }
		if !strings.ContainsFunc(a, other) {
			return !strings.ContainsFunc(b, other)
		}
	}
	return false
}
