package classify

import "strings"

// A sharedMeter bounds how much longer than its text the parser's answer can be. In SET
// (a, b, ...) = source PostgreSQL's grammar has all targets share one source (MultiAssignRef),
// which the answer then writes out for each; a source that holds another such statement
// multiplies. Nothing else of the grammar is written out more than twice.
//
// It may be too high, as of comparisons of rows behind a comma, and never too low.
type sharedMeter struct {
	total int // bytes of all tokens, each as often as the answer has it at most
	times int // how often it has what comes now
	shareLevel
	near [16]shareLevel // outer levels; the first need no allocation
	far  []shareLevel
	open int

	before  string // the last token
	targets int    // of the list that was closed just now; 0: what came last is none
}

// A shareLevel is one level of brackets.
type shareLevel struct {
	base   int // times where it began
	commas int
	list   bool // it may be a list of targets: behind SET or a comma
}

// mostTimes is beyond all that is let pass, and far from what an int holds.
const mostTimes = 1 << 20

func newSharedMeter() sharedMeter { return sharedMeter{times: 1, shareLevel: shareLevel{base: 1}} }

func (m *sharedMeter) take(kind tokenKind, text string) {
	targets := 0
	switch kind {
	case tokenOpen:
		m.push()
		m.shareLevel = shareLevel{base: m.times, list: m.before == "," || strings.EqualFold(m.before, "set")}
	case tokenClose:
		if m.list {
			targets = m.commas + 1
		}
		m.pop()
	case tokenComma:
		m.commas++
		m.times = m.base
	case tokenOperator:
		if m.targets > 0 && text == "=" {
			m.times = min(m.base*m.targets, mostTimes)
		}
	case tokenWord: // no name of these words stands without quotes but behind a dot
		if m.before != "." && (strings.EqualFold(text, "where") || strings.EqualFold(text, "returning")) {
			m.times = m.base
		}
	}
	m.total += len(text) * m.times
	m.before, m.targets = text, targets
}

func (m *sharedMeter) push() {
	switch m.open++; {
	case m.open <= len(m.near):
		m.near[m.open-1] = m.shareLevel
	case m.open <= maxBracketDepth: // more are refused
		m.far = append(m.far, m.shareLevel)
	}
}

// pop goes on as often as before the bracket, which stands in a source where that did.
func (m *sharedMeter) pop() {
	m.times = m.base
	switch far := len(m.far) - 1; {
	case m.open == 0: // the parser refuses it
		return
	case m.open > maxBracketDepth:
	case far >= 0:
		m.shareLevel, m.far = m.far[far], m.far[:far]
	default:
		m.shareLevel = m.near[m.open-1]
	}
	m.open--
}
