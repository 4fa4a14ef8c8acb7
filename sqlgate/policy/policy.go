package policy

import "slices"

// defaultTTLSeconds is GATE_APPROVAL_DEFAULT_TTL_SECONDS where nothing is set.
const defaultTTLSeconds = 300

// A rule is one rule of a document, compiled.
type rule struct {
	line       int // where it begins in the document
	column     int
	id         string
	decision   Decision
	reasonCode string
	observe    bool
	match      matcher
	unless     *matcher
	when       *condition
	lifts      []string
	liftBits   uint64
	message    string
	remedy     string
	ttlSeconds int // 0: the default of the service
	maxRows    *int64
	// grantSeconds is the longest time of a grant that the rule takes in place of an approval; 0: it takes none.
	grantSeconds int
	dryRun       *DryRunTerms // nil: no dry run
	needsReason  bool         // what it matches passes with a reason alone
	self         []string     // the id alone, shared by results that name only this rule
}

// A Policy is a document without errors, compiled and immutable; any number of
// goroutines may decide with it at once.
type Policy struct {
	name, version string
	hash          string
	semanticHash  string
	document      []byte
	rules         []rule
	tests         []Case
	defaultTTL    int

	index index
}

// Version is name@major.minor.patch.
func (p *Policy) Version() string { return p.name + "@" + p.version }

// Hash is the SHA-256 of the document's bytes, in lower-case hex.
func (p *Policy) Hash() string { return p.hash }

// SemanticHash is equal for two documents that mean the same: texts and tests
// do not count, nor do the names of lists; the order of rules does.
func (p *Policy) SemanticHash() string { return p.semanticHash }

// RuleCount is the number of rules, those in mode observe included.
func (p *Policy) RuleCount() int { return len(p.rules) }

// Document is a copy of the bytes that the policy was loaded from.
func (p *Policy) Document() []byte { return slices.Clone(p.document) }

// Tests are the cases of the document, in order. They must not be changed.
func (p *Policy) Tests() []Case { return p.tests }

// prepare makes the rules ready to decide.
func (p *Policy) prepare() {
	matchers := make([]*matcher, len(p.rules))
	for i := range p.rules {
		matchers[i] = &p.rules[i].match
		matchers[i].prepare()
		if p.rules[i].unless != nil {
			p.rules[i].unless.prepare()
		}
	}
	p.index = newIndex(matchers)
}

// A RuleText is what a rule says in words to those whom it binds.
type RuleText struct {
	ID       string
	Decision Decision
	Observe  bool // it only says what it would do
	Message  string
	Remedy   string
}

// RuleTexts are the rules in words, in their order.
func (p *Policy) RuleTexts() []RuleText {
	texts := make([]RuleText, len(p.rules))
	for i := range p.rules {
		r := &p.rules[i]
		texts[i] = RuleText{r.id, r.decision, r.observe, r.message, r.remedy}
	}
	return texts
}
