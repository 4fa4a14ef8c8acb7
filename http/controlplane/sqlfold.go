package controlplane

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// What an excerpt of a text leaves out: constants of a list, which it counts where they
// stand, and of a text that is long after that other parts, which are said above it.

const (
	listFrom     = 8  // constants of a list from which on it is folded
	rowsFrom     = 3  // rows of constants that follow another
	longConstant = 60 // bytes of a string that no list hides
	mostKeywords = 3  // that are named of what is left out
)

// foldLists puts a count in the place of constants that follow each other, with commas alone
// between them, in a list or in rows of one. Whatever else stands there stays.
func foldLists(pieces []sqlPiece) (shown []sqlPiece) {
	before, opens := "", "" // what stood before, and before the comma
	for i := 0; i < len(pieces); {
		to, note := 0, ""
		switch p := pieces[i]; {
		case p.Text == "(" && before == "," && opens == ")":
			to, note = rowsAt(pieces, i)
		case before == "(" || before == "[" || before == ",":
			to, note = listAt(pieces, i)
		}
		if note != "" {
			var text strings.Builder
			for _, p := range pieces[i:to] {
				text.WriteString(p.Text)
			}
			shown = append(shown, sqlPiece{Kind: "blank", Text: text.String(), Note: note})
			before, opens, i = "constant", "", to
			continue
		}
		shown = append(shown, pieces[i])
		if text := strings.TrimSpace(pieces[i].Text); text != "" && pieces[i].Kind != "blank" {
			opens, before = before, text
		}
		i++
	}
	return shown
}

// next is the first piece from a place on that is no plain white space.
func next(pieces []sqlPiece, i int) int {
	for i < len(pieces) && pieces[i].Kind == "plain" && strings.TrimSpace(pieces[i].Text) == "" {
		i++
	}
	return i
}

// textAt is what stands at a place; "" at the end.
func textAt(pieces []sqlPiece, i int) string {
	if i >= len(pieces) {
		return ""
	}
	return pieces[i].Text
}

// constantAt reads a constant, and gives the place behind it, or the same where none is.
func constantAt(pieces []sqlPiece, i int) (behind int, text string) {
	at := i
	if sign := textAt(pieces, at); sign == "-" || sign == "+" {
		at, text = at+1, sign
		if at >= len(pieces) || pieces[at].Kind != "number" {
			return i, ""
		}
	}
	if at >= len(pieces) {
		return i, ""
	}
	switch p := pieces[at]; {
	case p.Kind == "number", p.Kind == "string" && len(p.Text) <= longConstant, p.Kind == "keyword" && slices.Contains([]string{"NULL", "TRUE", "FALSE", "DEFAULT"}, strings.ToUpper(p.Text)):
		return at + 1, text + p.Text
	}
	return i, ""
}

// constantsAt reads constants with commas between them. Of each it gives the place behind it.
func constantsAt(pieces []sqlPiece, i int) (behind []int, texts []string) {
	for {
		to, text := constantAt(pieces, i)
		if to == i {
			return behind, texts
		}
		behind, texts = append(behind, to), append(texts, text)
		comma := next(pieces, to)
		if textAt(pieces, comma) != "," {
			return behind, texts
		}
		i = next(pieces, comma+1)
	}
}

// listAt says what a list of constants holds, and where it ends; of too short a one nothing.
func listAt(pieces []sqlPiece, i int) (to int, note string) {
	behind, texts := constantsAt(pieces, i)
	if n := len(texts); n > 0 {
		switch textAt(pieces, next(pieces, behind[n-1])) {
		case ")", "]", ",":
		default: // the last is a part of something more
			behind, texts = behind[:n-1], texts[:n-1]
		}
	}
	if len(texts) < listFrom {
		return i, ""
	}
	return behind[len(behind)-1], listWords(texts)
}

// rowsAt is listAt of rows.
func rowsAt(pieces []sqlPiece, i int) (to int, note string) {
	rows, constants, last := 0, 0, i
	for at := i; textAt(pieces, at) == "("; {
		behind, _ := constantsAt(pieces, next(pieces, at+1))
		if len(behind) == 0 {
			break
		}
		end := next(pieces, behind[len(behind)-1])
		if textAt(pieces, end) != ")" {
			break
		}
		follows := next(pieces, end+1)
		switch strings.ToUpper(textAt(pieces, follows)) {
		case ",", ")", ";", "", "ON", "RETURNING":
		default: // it is a part of something more
			return last, rowWords(rows, constants)
		}
		rows, constants, last = rows+1, constants+len(behind), end+1
		if textAt(pieces, follows) != "," {
			break
		}
		at = next(pieces, follows+1)
	}
	return last, rowWords(rows, constants)
}

func rowWords(rows, constants int) string {
	if rows < rowsFrom {
		return ""
	}
	return fmt.Sprintf("%s more rows, of %s", thousands(int64(rows)), plural(constants, "constant", "constants"))
}

// listWords say what constants there are.
func listWords(texts []string) string {
	least, most := texts[0], texts[0]
	numbers, strs := true, true
	for _, text := range texts {
		n, err := strconv.ParseFloat(text, 64)
		numbers, strs = numbers && err == nil, strs && strings.HasPrefix(text, "'")
		switch {
		case numbers:
			if low, _ := strconv.ParseFloat(least, 64); n < low {
				least = text
			}
			if high, _ := strconv.ParseFloat(most, 64); n > high {
				most = text
			}
		case strs:
			least, most = min(least, text), max(most, text)
		}
	}
	kind := "constants"
	switch {
	case numbers:
		kind = "numbers"
	case strs:
		kind = "strings"
	default:
		return plural(len(texts), "constant", kind)
	}
	if least == most {
		return fmt.Sprintf("%s %s, all %s", thousands(int64(len(texts))), kind, least)
	}
	return fmt.Sprintf("%s %s from %s to %s", thousands(int64(len(texts))), kind, least, most)
}

// graveKeywords are those that are named first of what is left out.
var graveKeywords = append(strings.Fields("DELETE UPDATE INSERT MERGE TRUNCATE DROP ALTER CREATE GRANT REVOKE CALL EXECUTE DO INTO OR"), append([]string{subquery}, strings.Fields("UNION EXCEPT NOT CASE EXISTS WHERE AND")...)...)

const subquery = "a subquery"

// leftOut says what kinds of parts pieces hold that a page leaves out, what changes the
// meaning most first; "" where they change none.
func leftOut(pieces []sqlPiece) string {
	keywords := make(map[string]int)
	var order []string
	var calls, names, operators, constants, comments, marks, ends int
	before := ""
	for i, p := range pieces {
		text := strings.TrimSpace(p.Text)
		if text == "" {
			continue
		}
		word := strings.ToUpper(text)
		switch p.Kind {
		case "comment":
			comments++
			continue
		case "blank": // it says there what it is
			continue
		case "keyword":
			if word == "SELECT" && before == "(" {
				word = subquery
			}
			if keywords[word]++; keywords[word] == 1 {
				order = append(order, word)
			}
		case "word":
			if textAt(pieces, next(pieces, i+1)) == "(" {
				calls++
			} else {
				names++
			}
		case "string", "number":
			constants++
		case "mark":
			marks++
		default:
			switch text {
			case "(", ")", ",", ".", "[", "]", ":", "$":
			case ";":
				ends++
			default:
				if i == 0 || pieces[i-1].Kind != "plain" || strings.ContainsAny(pieces[i-1].Text, "(),;.[] \n") { // one of several signs is one
					operators++
				}
			}
		}
		before = text
	}
	rank := func(word string) int {
		if i := slices.Index(graveKeywords, word); i >= 0 {
			return i
		}
		return len(graveKeywords)
	}
	slices.SortStableFunc(order, func(a, b string) int { return rank(a) - rank(b) })
	var list []string
	for _, word := range order[:min(len(order), mostKeywords)] {
		if n := keywords[word]; n > 1 {
			word = fmt.Sprintf("%s ×%s", word, thousands(int64(n)))
		}
		list = append(list, word)
	}
	add := func(n int, one, many string) {
		if n > 0 {
			list = append(list, plural(n, one, many))
		}
	}
	add(ends, "end of a statement", "ends of statements")
	add(marks, "marked character", "marked characters")
	add(calls, "call", "calls")
	if len(list) == 0 { // else they are a matter of course
		add(operators, "operator", "operators")
		add(names, "name", "names")
		add(constants, "constant", "constants")
		add(comments, "comment", "comments")
	}
	words := strings.Join(list, ", ")
	if len(order) > mostKeywords {
		words += " and more"
	}
	return words
}
