package controlplane

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/runenames"

	"writegate/sqlgate/lookalike"
)

// SQL on a card is shown as it will run, so that a text written to mislead the
// person who approves it does not. The scanner below knows PostgreSQL's lexical
// structure (https://www.postgresql.org/docs/current/sql-syntax-lexical.html)
// well enough to set apart comments, literals and words. It judges nothing: what
// it gets wrong is coloured wrong.

// A sqlView is a statement as a page shows it.
type sqlView struct {
	Pieces   []sqlPiece
	Warnings []string
	Bytes    int
	Digest   string // SHA-256 of the exact bytes, hex
	Shape    bool   // values are left out: what ran is longer
	Misread  bool   // it holds letters that a reader does not see, or takes for others
	Lines    []sqlLine
	Parts    []sqlPart // it is long: a page shows these until asked
}

// A sqlLine is a line of a text, as an editor counts them.
type sqlLine struct {
	Number int
	Pieces []sqlPiece
}

// A sqlPart is a passage of a long text.
type sqlPart struct {
	Lines []sqlLine
	Cut   bool // the passage goes on
}

// A sqlPiece is a run of text of one kind.
type sqlPiece struct {
	Kind string // keyword, word, string, number, comment, mark, blank, plain
	Text string
	Note string // of a mark or a folded blank: what stands there

	Differs bool // from the other statements of its shape
	Lost    int  // bytes of a long one that an excerpt leaves out
}

// Bounds of what is shown at once.
const (
	foldBytes = 1_500
	foldLines = 16
	partBytes = 400 // of each passage that writes
	mostParts = 6
	longBlank = 24 // white space beyond this is folded and said
	longLines = 4
	tailBytes = partBytes / 3
	longPiece = 160 // of a comment or a string in an excerpt
	nearBytes = 80  // before the cut of a list's row, where a verb shows and its table may not

	searchedBytes = 64 << 10 // in which a row of a list looks for what writes
	mostMixed     = 20       // words of several alphabets that are named
	mostNotes     = 1_000    // marks with their whole note; the others have the number of the character
)

func viewSQL(text string) sqlView {
	v := piecesOf(text)
	v.Lines = linesOf(v.Pieces, 1)
	if len(text) > foldBytes || len(v.Lines) > foldLines {
		v.fold()
	}
	return v
}

// piecesOf is a text with what is said of it, before a page is made of it.
func piecesOf(text string) sqlView {
	sum := sha256.Sum256([]byte(text))
	v := sqlView{Bytes: len(text), Digest: hex.EncodeToString(sum[:])}
	var names lookalike.Names
	for _, p := range scanned(text, nil).pieces {
		if p.Kind == "word" || p.Kind == "keyword" {
			names.Add(p.Text)
		}
	}
	scan := scanned(text, &names)
	v.Pieces, v.Warnings, v.Misread = scan.pieces, scan.warnings(), scan.marks > 0 || len(scan.mixed) > 0
	return v
}

// scanned is a text that was read to its end. Without names nothing in it is marked.
func scanned(text string, names *lookalike.Names) *sqlScanner {
	scan := &sqlScanner{text: text, names: names, mixed: map[string]bool{}}
	for scan.at < len(text) {
		scan.next()
	}
	return scan
}

// linesOf parts pieces where lines end.
func linesOf(pieces []sqlPiece, first int) []sqlLine {
	lines := []sqlLine{{Number: first}}
	for _, p := range pieces {
		last := &lines[len(lines)-1]
		if p.Kind == "blank" { // which stands for all its lines
			last.Pieces = append(last.Pieces, p)
			if ends := strings.Count(lineEnds.Replace(p.Text), "\n"); ends > 0 {
				lines = append(lines, sqlLine{Number: last.Number + ends})
			}
			continue
		}
		for i, text := range strings.Split(lineEnds.Replace(p.Text), "\n") {
			if i > 0 {
				lines = append(lines, sqlLine{Number: lines[len(lines)-1].Number + 1})
			}
			if last := &lines[len(lines)-1]; text != "" {
				last.Pieces = append(last.Pieces, sqlPiece{Kind: p.Kind, Text: text, Note: p.Note})
			}
		}
	}
	return lines
}

var lineEnds = strings.NewReplacer("\r\n", "\n", "\r", "\n")

// fold picks what a page shows of a long text: all of it without the constants of its lists,
// where that is short, or the passages that write, or its beginning. What kinds of parts are
// left out then is said above.
func (v *sqlView) fold() {
	all := contracted(v.Pieces)
	seen := make([]bool, len(all))
	show := func(from, to, line int, cut bool) {
		for i := from; i < to; i++ {
			seen[i] = true
		}
		v.Parts = append(v.Parts, sqlPart{linesOf(all[from:to], line), cut})
	}
	if fits(all) {
		show(0, len(all), 1, false)
	} else {
		v.showPassages(all, show)
	}
	var hidden []sqlPiece
	strs := 0
	for i, p := range all {
		if !seen[i] {
			hidden = append(hidden, p)
		} else if p.Kind == "string" && p.Lost > 0 {
			strs++
		}
	}
	words := leftOut(hidden)
	if strs > 0 {
		words = strings.TrimPrefix(words+", the middle of "+plural(strs, "long string", "long strings"), ", ")
	}
	if words != "" {
		v.Warnings = slices.Insert(v.Warnings, 0, "Left out below: "+words+".")
	}
}

// fits tells whether pieces are shown at once.
func fits(pieces []sqlPiece) bool {
	size := 0
	for _, p := range pieces {
		size += p.width()
	}
	return size <= foldBytes && len(linesOf(pieces, 1)) <= foldLines
}

// showPassages shows the beginning and the end of each passage that writes.
func (v *sqlView) showPassages(all []sqlPiece, show func(from, to, line int, cut bool)) {
	starts := writingParts(all)
	if len(starts) > mostParts {
		v.Warnings = append(v.Warnings, fmt.Sprintf("%d passages of it write, or look as if they did; the first %d are shown. Read the whole text.", len(starts), mostParts))
		starts = starts[:mostParts]
	}
	if len(starts) == 0 {
		starts = []partAt{{0, len(all), 0}}
	}
	line, at := 1, 0
	for _, part := range starts {
		for ; at < part.from; at++ {
			line += strings.Count(lineEnds.Replace(all[at].Text), "\n")
		}
		cut := part.to < len(all)
		head, size := part.from, 0
		for head < part.to && size+all[head].width() <= partBytes-tailBytes {
			size += all[head].width()
			head++
		}
		tail, size := part.to, 0
		for tail > head && size+all[tail-1].width() <= tailBytes {
			tail--
			size += all[tail].width()
		}
		if tail == head { // it fits
			show(part.from, part.to, line, cut)
			continue
		}
		behind := line
		for _, p := range all[part.from:tail] {
			behind += strings.Count(lineEnds.Replace(p.Text), "\n")
		}
		// What bounds a write stands at its end, so that is shown as well as its beginning.
		show(part.from, head, line, true)
		show(tail, part.to, behind, cut)
	}
}

// width is how much of a page a piece takes.
func (p *sqlPiece) width() int {
	if p.Kind == "blank" {
		return len(p.Note)
	}
	return len(p.Text)
}

// contracted are pieces as an excerpt has them: of comments that follow each other the
// first, of lists of constants what they hold, and of what is long its ends, so that nothing
// that runs is out of sight behind what does not, or behind a value.
func contracted(pieces []sqlPiece) (shown []sqlPiece) {
	var skipped sqlPiece
	comments, behind := 0, false
	flush := func() {
		if comments > 0 {
			skipped.Kind, skipped.Note = "blank", plural(comments, "more comment", "more comments")
			shown = append(shown, skipped)
		}
		skipped, comments = sqlPiece{}, 0
	}
	for _, p := range foldLists(pieces) {
		switch {
		case p.Kind == "comment" && behind:
			skipped.Text += p.Text
			comments++
			continue
		case behind && strings.TrimSpace(p.Text) == "":
			skipped.Text += p.Text
			if comments == 0 {
				shown, skipped.Text = append(shown, p), ""
			}
			continue
		}
		flush()
		behind = p.Kind == "comment"
		if (p.Kind == "comment" || p.Kind == "string") && len(p.Text) > longPiece {
			head, tail := cutRunes(p.Text, longPiece/2), tailOf(p.Text, longPiece/4)
			p.Text, p.Lost = head+" … "+tail, len(p.Text)-len(head)-len(tail)
		}
		shown = append(shown, p)
	}
	flush()
	return shown
}

// tailOf is the end of a text, of at most n bytes.
func tailOf(s string, n int) string {
	at := max(len(s)-n, 0)
	for at < len(s) && !utf8.RuneStart(s[at]) {
		at++
	}
	return s[at:]
}

// A partAt is a passage, by its pieces, and how many parentheses it stands in.
type partAt struct{ from, to, depth int }

// writingParts finds the passages that write, by their words: each from its verb to the end
// of its parenthesis, to the next one beside it or to the end. What is no such passage may
// look like one; what the statement writes, the classification says.
func writingParts(pieces []sqlPiece) (parts []partAt) {
	var words []int // pieces that are neither blanks nor comments
	for i, p := range pieces {
		if p.Kind != "comment" && p.Kind != "blank" && strings.TrimSpace(p.Text) != "" {
			words = append(words, i)
		}
	}
	word := func(n int) string {
		if n < 0 || n >= len(words) {
			return ""
		}
		return strings.ToUpper(pieces[words[n]].Text)
	}
	depth, open := 0, []int(nil) // passages that have not ended, the outermost first
	end := func(i, least int) {
		for len(open) > 0 && parts[open[len(open)-1]].depth >= least {
			parts[open[len(open)-1]].to, open = i, open[:len(open)-1]
		}
	}
	for n, i := range words {
		switch w := word(n); {
		case w == "(":
			depth++
		case w == ")":
			end(i, depth)
			depth--
		case pieces[i].Kind != "string" && writes(word(n-1), w, word(n+1)):
			end(i, depth)
			open, parts = append(open, len(parts)), append(parts, partAt{i, len(pieces), depth})
		}
	}
	return parts
}

// writes tells of a word, by its neighbours, whether a write begins there.
func writes(before, word, after string) bool {
	switch {
	case before == "": // of a text that is no query
		return word != "SELECT" && word != "WITH" && word != "VALUES" && word != "TABLE" && word != "EXPLAIN"
	case !slices.Contains([]string{"(", ")", ";", "AS", "ANALYZE", "VERBOSE", "THEN", "DO", "MATERIALIZED"}, before):
		return false
	case word == "DELETE":
		return after == "FROM" || before == "THEN"
	case word == "UPDATE":
		return after != ")" && after != ","
	case word == "INSERT":
		return after == "INTO" || before == "THEN"
	case word == "MERGE":
		return after == "INTO"
	case word == "INTO": // SELECT ... INTO
		return before == ")"
	}
	return false
}

func cutRunes(s string, n int) string {
	for n > 0 && n < len(s) && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:min(max(n, 0), len(s))]
}

// viewClaim is a name that a caller gives itself, with the letters marked that a reader
// would take for others.
func viewClaim(text string) sqlView {
	said := viewSaid(text)
	v := sqlView{Warnings: said.Warnings}
	for _, p := range said.Pieces { // what would end the quotes that a page puts around it is no word of the page's
		for p.Kind != "mark" && strings.ContainsAny(p.Text, quotes) {
			at := strings.IndexAny(p.Text, quotes)
			_, size := utf8.DecodeRuneInString(p.Text[at:])
			v.Pieces = append(v.Pieces, sqlPiece{Kind: p.Kind, Text: p.Text[:at]}, sqlPiece{Kind: "mark", Text: p.Text[at : at+size], Note: "a quotation mark in it"})
			p.Text = p.Text[at+size:]
		}
		v.Pieces = append(v.Pieces, p)
	}
	if strings.ContainsAny(text, quotes) {
		v.Warnings = append(v.Warnings, "It has quotation marks in it: what stands behind them is the claim's own words, and not this page's.")
	}
	return v
}

// viewSaid is a sentence of a page with names in it, of which those letters are marked, too.
func viewSaid(text string) sqlView {
	scan := &sqlScanner{text: text, names: &lookalike.Names{}, mixed: map[string]bool{}}
	scan.take("claim", len(text))
	return sqlView{Pieces: scan.pieces, Warnings: scan.warnings()}
}

// headClaim is a claim as the first sentence of a page has it, of which much may follow.
func headClaim(text string) []sqlPiece {
	head := cutRunes(text, headBytes)
	pieces := viewClaim(head).Pieces
	if cut := len(text) - len(head); cut > 0 {
		pieces = append(pieces, sqlPiece{Kind: "blank", Note: "cut: " + plural(cut, "byte", "bytes") + " more, below"})
	}
	return pieces
}

const headBytes = 80

// quotes are the characters that may be taken for the end of a name in quotes.
const quotes = "\"“”„‟«»″"

// Marked is a statement for a terminal: what its page marks is written out by its number, as
// in ⟨U+202E⟩, which nothing in a text can seem to be: its own ⟨ is written out, too.
func Marked(sql string) string {
	return writtenOut(viewSQL(sql).Pieces, func(text string) string { return text })
}

// MarkedClaim is Marked of a name that a caller gives itself, in quotes that nothing in it
// ends.
func MarkedClaim(text string) string {
	return `"` + writtenOut(viewClaim(text).Pieces, func(text string) string {
		quoted := strconv.Quote(text)
		return quoted[1 : len(quoted)-1]
	}) + `"`
}

func writtenOut(pieces []sqlPiece, plain func(string) string) string {
	var b strings.Builder
	for _, p := range pieces {
		var marked rune
		if _, err := fmt.Sscanf(p.Note, "U+%X", &marked); p.Kind != "mark" || err != nil {
			b.WriteString(strings.ReplaceAll(plain(p.Text), "⟨", "⟨U+27E8⟩"))
			continue
		}
		fmt.Fprintf(&b, "⟨U+%04X⟩", marked)
	}
	return b.String()
}

type sqlScanner struct {
	text   string
	at     int
	pieces []sqlPiece
	names  *lookalike.Names // of the whole text; nil while these are gathered

	escapes     bool // an E stands before the quote that comes
	goesOn      bool // blanks with a line end are all since a string constant
	backslashes bool // which was one of E'...'

	comments, blanks int
	marks            int
	mixed            map[string]bool // words of several alphabets, by what is said of them
	said             []string        // the first of them, in order
}

// next takes one token.
func (s *sqlScanner) next() {
	rest := s.text[s.at:]
	if c := rest[0]; c != '\'' && !isBlank(c) {
		s.goesOn = false
	}
	switch c := rest[0]; {
	case strings.HasPrefix(rest, "--"):
		s.comments++
		s.take("comment", lineEnd(rest))
	case strings.HasPrefix(rest, "/*"):
		s.comments++
		s.take("comment", commentEnd(rest))
	case c == '\'':
		s.constant(rest)
		return
	case c == '"':
		s.take("word", quoteEnd(rest, '"', false))
	case c == '$' && dollarTag(rest) != "":
		s.take("string", dollarEnd(rest))
	case isBlank(c):
		s.blank(blankEnd(rest))
	case c == '$' && len(rest) > 1 && isDigit(rune(rest[1])):
		s.take("plain", 1)
		s.take("number", runEnd(s.text[s.at:], isDigit))
	case isDigit(rune(c)):
		s.take("number", runEnd(rest, func(r rune) bool { return r == '.' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r) }))
	default:
		if r, _ := utf8.DecodeRuneInString(rest); isWordStart(r) {
			s.word(runEnd(rest, isWordPart))
			return
		}
		_, n := utf8.DecodeRuneInString(rest)
		s.take("plain", n)
	}
}

// constant takes a string constant. One that stands behind another, on a new line, goes on
// with it, and is read as its first part is (PostgreSQL "String Constants").
func (s *sqlScanner) constant(rest string) {
	s.backslashes = s.escapes || s.goesOn && s.backslashes
	s.escapes = false
	s.take("string", quoteEnd(rest, '\'', s.backslashes))
	between := s.text[s.at : s.at+blankEnd(s.text[s.at:])]
	s.goesOn = strings.ContainsAny(between, "\r\n")
}

func (s *sqlScanner) word(n int) {
	token := s.text[s.at : s.at+n]
	s.escapes = (token == "E" || token == "e") && strings.HasPrefix(s.text[s.at+n:], "'")
	kind := "word"
	if _, found := slices.BinarySearch(sqlKeywords, strings.ToUpper(token)); found {
		kind = "keyword"
	}
	s.take(kind, n)
}

// blank folds white space that is long enough to push something out of sight.
func (s *sqlScanner) blank(n int) {
	token := s.text[s.at : s.at+n]
	lines := strings.Count(token, "\n")
	if n <= longBlank && lines <= longLines {
		s.take("plain", n)
		return
	}
	s.blanks++
	note := fmt.Sprintf("%d blanks", n)
	if lines > 1 {
		note = fmt.Sprintf("%d blank lines", lines)
	}
	s.pieces = append(s.pieces, sqlPiece{Kind: "blank", Text: token, Note: note})
	s.at += n
}

// take adds n bytes as pieces of a kind. Characters that can't be seen, and
// letters that could be taken for others, become pieces of their own.
func (s *sqlScanner) take(kind string, n int) {
	token := s.text[s.at : s.at+n]
	s.at += n
	if s.names == nil {
		s.add(kind, token)
		return
	}
	var mixed [][]int
	switch kind {
	case "string", "claim":
		mixed = s.mixedIn(token, kind == "claim")
	case "word", "keyword":
		if said := s.misread(token); said != "" {
			s.noteMixed(said)
			mixed = [][]int{{0, len(token)}}
		}
	}
	from := 0
	for i, r := range token {
		note := s.suspicious(kind, r)
		for len(mixed) > 0 && mixed[0][1] <= i {
			mixed = mixed[1:]
		}
		if note == "" && lookalike.ASCII(r) != "" && len(mixed) > 0 && mixed[0][0] <= i {
			note = looksLike(r)
		}
		if note == "" {
			continue
		}
		if s.marks++; s.marks > mostNotes {
			note = fmt.Sprintf("U+%04X", r)
		}
		s.add(kind, token[from:i])
		size := utf8.RuneLen(r)
		if r == utf8.RuneError {
			_, size = utf8.DecodeRuneInString(token[i:])
		}
		s.pieces = append(s.pieces, sqlPiece{Kind: "mark", Text: shown(r, token[i:i+size]), Note: note})
		from = i + size
	}
	s.add(kind, token[from:])
}

func (s *sqlScanner) add(kind, text string) {
	if kind == "claim" {
		kind = "plain"
	}
	if text != "" {
		s.pieces = append(s.pieces, sqlPiece{Kind: kind, Text: text})
	}
}

// suspicious says what a reader would not see in a character, or "".
func (s *sqlScanner) suspicious(kind string, r rune) string {
	switch {
	case r < 0x80:
		if unicode.IsControl(r) && !isBlank(byte(r)) {
			return named(r, "a control character")
		}
		return ""
	case unicode.Is(unicode.Bidi_Control, r):
		return named(r, "it turns the direction of the text around, so what you read is not the order that runs")
	case unseen(r), unicode.In(r, unicode.Zs, unicode.Co):
		return named(r, "it cannot be seen")
	case kind == "claim" && lookalike.Styled(r) != "": // full-width and the like
		return looksLike(r)
	}
	return ""
}

func looksLike(r rune) string {
	return named(r, fmt.Sprintf("it looks like the letter %q and is another", lookalike.ASCII(r)))
}

// misread says why a name is not what it looks like, or "".
func (s *sqlScanner) misread(name string) string {
	switch mixed := mixedAlphabets(name); {
	case mixed != "":
		return mixed
	case lookalike.HasStyled(name):
		return fmt.Sprintf("The word %q has letters that look like others: it is not the word it looks like.", cutRunes(name, 60))
	case s.names.Alike(name):
		return fmt.Sprintf("The word %q looks like another name of the statement and is not that name.", cutRunes(name, 60))
	}
	return ""
}

// wordPattern finds words in a literal.
var wordPattern = regexp.MustCompile(`\pL+`)

// mixedIn finds the words of a literal whose letters come from several
// alphabets, and notes them. A word of one alphabet, whichever it is, is a word; but a
// name must not be one that is all letters of another alphabet that look Latin.
func (s *sqlScanner) mixedIn(token string, name bool) (places [][]int) {
	for _, at := range wordPattern.FindAllStringIndex(token, -1) {
		word := token[at[0]:at[1]]
		mixed := mixedAlphabets(word)
		if mixed == "" && name && lookalike.LooksLatin(word) {
			mixed = fmt.Sprintf("The word %q looks Latin and has no Latin letter.", cutRunes(word, 60))
		}
		if mixed != "" {
			places = append(places, at)
			s.noteMixed(mixed)
		}
	}
	return places
}

func (s *sqlScanner) noteMixed(mixed string) {
	if !s.mixed[mixed] && len(s.said) < mostMixed {
		s.said = append(s.said, mixed)
	}
	s.mixed[mixed] = true
}

func named(r rune, why string) string {
	return fmt.Sprintf("U+%04X %s: %s", r, strings.ToLower(runenames.Name(r)), why)
}

// shown is what stands in the place of a character that can't be seen.
func shown(r rune, text string) string {
	if lookalike.ASCII(r) != "" {
		return text
	}
	return fmt.Sprintf("U+%04X", r)
}

func (s *sqlScanner) warnings() []string {
	var list []string
	if n := s.marks; n > 0 {
		list = append(list, fmt.Sprintf("%s that a reader does not see, or takes for another. Each is marked where it stands.", plural(n, "character", "characters")))
	}
	list = append(list, s.said...)
	if n := len(s.mixed) - len(s.said); n > 0 {
		list = append(list, fmt.Sprintf("%s more mix letters of several alphabets.", plural(n, "word", "words")))
	}
	if s.comments > 0 {
		list = append(list, fmt.Sprintf("%s. Comments do not run; whoever wrote the statement wrote them, perhaps for you.", plural(s.comments, "comment", "comments")))
	}
	if s.blanks > 0 {
		list = append(list, "A long run of blanks is folded: without that, the rest would stand out of sight.")
	}
	return list
}

// mixedAlphabets tells of a word whose letters come from alphabets that share
// their looks.
func mixedAlphabets(token string) string {
	found := lookalike.Mixed(token)
	if found == nil {
		return ""
	}
	return fmt.Sprintf("The word %q mixes %s letters: it is not the word it looks like.", cutRunes(token, 60), strings.Join(found, " and "))
}

func isBlank(c byte) bool {
	return c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '\f' || c == '\v'
}
func isWordStart(r rune) bool { return r == '_' || r >= 0x80 || unicode.IsLetter(r) }
func isDigit(r rune) bool     { return r >= '0' && r <= '9' }
func isWordPart(r rune) bool  { return isWordStart(r) || r == '$' || isDigit(r) }
func blankEnd(text string) int {
	return runEnd(text, func(r rune) bool { return r < 0x80 && isBlank(byte(r)) })
}

func runEnd(text string, in func(rune) bool) int {
	if i := strings.IndexFunc(text, func(r rune) bool { return !in(r) }); i >= 0 {
		return i
	}
	return len(text)
}

func lineEnd(text string) int {
	if i := strings.IndexAny(text, "\r\n"); i >= 0 {
		return i
	}
	return len(text)
}

// commentEnd knows that comments nest.
func commentEnd(text string) int {
	depth := 0
	for i := 0; i+1 < len(text); i++ {
		switch text[i : i+2] {
		case "/*":
			depth++
			i++
		case "*/":
			depth--
			i++
			if depth == 0 {
				return i + 1
			}
		}
	}
	return len(text)
}

func quoteEnd(text string, quote byte, escapes bool) int {
	for i := 1; i < len(text); i++ {
		switch {
		case escapes && text[i] == '\\':
			i++
		case text[i] == quote && i+1 < len(text) && text[i+1] == quote:
			i++
		case text[i] == quote:
			return i + 1
		}
	}
	return len(text)
}

// dollarTag is the $tag$ that a text begins with, or "".
func dollarTag(text string) string {
	end := strings.IndexByte(text[1:], '$')
	if end < 0 {
		return ""
	}
	tag := text[:end+2]
	for i, r := range tag[1 : len(tag)-1] {
		if !isWordPart(r) || r == '$' || (i == 0 && !isWordStart(r)) {
			return ""
		}
	}
	return tag
}

func dollarEnd(text string) int {
	tag := dollarTag(text)
	if i := strings.Index(text[len(tag):], tag); i >= 0 {
		return i + 2*len(tag)
	}
	return len(text)
}

// sqlKeywords are the words that a reader looks for, sorted.
var sqlKeywords = func() []string {
	words := strings.Fields(`ADD ALL ALTER ANALYZE AND ANY AS ASC BEGIN BETWEEN BY CALL CASCADE CASE CAST CHECK COLUMN COMMIT CONCURRENTLY
		CONFLICT CONSTRAINT COPY CREATE CROSS CURRENT DATABASE DEFAULT DELETE DESC DISTINCT DO DROP ELSE END EXCEPT EXECUTE EXISTS EXPLAIN
		EXTENSION FALSE FETCH FOR FOREIGN FROM FULL FUNCTION GRANT GROUP HAVING ILIKE IF IN INDEX INNER INSERT INTERSECT INTO IS JOIN KEY
		LATERAL LEFT LIKE LIMIT LOCK MATERIALIZED MERGE NATURAL NOT NOTHING NULL OFFSET ON OR ORDER OUTER OVER PARTITION PREPARE PRIMARY
		PROCEDURE PROGRAM REFERENCES REINDEX RENAME REPLACE RESET RESTRICT RETURNING REVOKE RIGHT ROLE ROLLBACK SCHEMA SELECT SEQUENCE
		SET SHOW SOME TABLE TEMP TEMPORARY THEN TO TRIGGER TRUE TRUNCATE UNION UNIQUE UPDATE USING VACUUM VALUES VIEW WHEN WHERE WINDOW WITH`)
	slices.Sort(words)
	return words
}()
