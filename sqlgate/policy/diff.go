package policy

import (
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"

	"github.com/rogpeppe/go-internal/diff"
)

// A Difference is what lies between two versions, rule by rule
// (design/policy.md part 8).
type Difference struct {
	IdenticalBytes     bool              `json:"identical_bytes"`
	IdenticalSemantics bool              `json:"identical_semantics"`
	Summary            DifferenceSummary `json:"summary"`
	Changes            []RuleChange      `json:"changes"`
	Text               string            `json:"text"` // unified diff of the bytes

	left room
}

// A DifferenceSummary counts changes by kind. ActionChanges are those that can
// change a decision by themselves: another decision or mode, a rule added or
// removed.
type DifferenceSummary struct {
	Added         int `json:"added"`
	Removed       int `json:"removed"`
	Modified      int `json:"modified"`
	Renamed       int `json:"renamed"`
	Reordered     int `json:"reordered"`
	ActionChanges int `json:"action_changes"`
}

// Kinds of a RuleChange.
const (
	ChangeAdded     = "added"
	ChangeRemoved   = "removed"
	ChangeModified  = "modified"
	ChangeRenamed   = "renamed"
	ChangeReordered = "reordered"
)

// Directions of a RuleChange: what it can do to decisions.
const (
	DirectionLooser  = "looser"
	DirectionTighter = "tighter"
	DirectionNone    = "none"    // the rule decides nothing on either side, or the same
	DirectionUnknown = "unknown" // it depends on the statements; a replay tells
)

// A RuleChange is what happened to one rule.
type RuleChange struct {
	RuleID        string        `json:"rule_id"`
	Change        string        `json:"change"`
	RenamedFrom   string        `json:"renamed_from,omitempty"`
	ActionChanged bool          `json:"action_changed"`
	Decision      *FromTo       `json:"decision"` // null where it stays the same
	Direction     string        `json:"direction"`
	Fields        []FieldChange `json:"fields"`
}

// FromTo is a value before and after; null where the rule was not there.
type FromTo struct {
	From *Decision `json:"from"`
	To   *Decision `json:"to"`
}

// A FieldChange is one field of a rule that changed. Lists tell what came and
// went, everything else its value before and after.
type FieldChange struct {
	Path           string
	From, To       any
	Added, Removed []string
	list           bool
}

// MarshalJSON writes the one form or the other.
func (f FieldChange) MarshalJSON() ([]byte, error) {
	if f.list {
		return json.Marshal(map[string]any{"path": f.Path, "added": f.Added, "removed": f.Removed})
	}
	return json.Marshal(map[string]any{"path": f.Path, "from": f.From, "to": f.To})
}

// Diff compares two versions. Meaning is compared with lists expanded and
// sorted, so that moving a pattern into a $list is no change.
func Diff(base, target *Policy) Difference {
	d := Difference{
		IdenticalBytes: base.hash == target.hash, IdenticalSemantics: base.semanticHash == target.semanticHash,
		Changes: []RuleChange{}, left: maxNames, Text: string(diff.Diff(base.Version()+".yaml", base.document, target.Version()+".yaml", target.document)),
	}
	c := comparison{base: byID(base), target: byID(target)}
	c.findRenamed(base, target)
	moved := c.moved(base, target)
	for i := range target.rules {
		if change, any := c.ofTarget(&target.rules[i], moved); any {
			d.add(change)
		}
	}
	for i := range base.rules {
		u := &base.rules[i]
		if c.target[u.id] == nil && c.renamedTo[u.id] == "" {
			d.add(RuleChange{RuleID: u.id, Change: ChangeRemoved, ActionChanged: true, Decision: &FromTo{From: &u.decision},
				Direction: opposite(ofPresence(u)), Fields: []FieldChange{}})
		}
	}
	return d
}

func (d *Difference) add(c RuleChange) {
	for i := range c.Fields {
		f := &c.Fields[i]
		f.Added, f.Removed, f.From, f.To = d.left.list(f.Added), d.left.list(f.Removed), d.left.fit(f.From), d.left.fit(f.To)
	}
	d.Changes = append(d.Changes, c)
	s := &d.Summary
	*map[string]*int{ChangeAdded: &s.Added, ChangeRemoved: &s.Removed, ChangeModified: &s.Modified, ChangeRenamed: &s.Renamed, ChangeReordered: &s.Reordered}[c.Change]++
	if c.ActionChanged {
		s.ActionChanges++
	}
}

// A comparison holds the rules of both sides by id.
type comparison struct {
	base, target           map[string]*rule
	renamedFrom, renamedTo map[string]string
}

func byID(p *Policy) map[string]*rule {
	m := make(map[string]*rule, len(p.rules))
	for i := range p.rules {
		m[p.rules[i].id] = &p.rules[i]
	}
	return m
}

// findRenamed pairs a rule that went with one that came and means the same.
func (c *comparison) findRenamed(base, target *Policy) {
	c.renamedFrom, c.renamedTo = map[string]string{}, map[string]string{}
	went := map[[32]byte][]string{} // ids by meaning, in order
	for i := range base.rules {
		if u := &base.rules[i]; c.target[u.id] == nil {
			meaning := withoutID(u)
			went[meaning] = append(went[meaning], u.id)
		}
	}
	for i := range target.rules {
		came := &target.rules[i]
		if c.base[came.id] != nil {
			continue
		}
		meaning := withoutID(came)
		if ids := went[meaning]; len(ids) > 0 {
			c.renamedFrom[came.id], c.renamedTo[ids[0]], went[meaning] = ids[0], came.id, ids[1:]
		}
	}
}

// withoutID is a digest of what a rule means.
func withoutID(u *rule) [32]byte {
	m := u.meaning()
	delete(m, "id")
	text, err := json.Marshal(m)
	if err != nil { // texts, numbers and lists of them
		panic(err)
	}
	return sha256.Sum256(text)
}

// moved are the rules of the target that changed places among those that both
// sides have: all that are not in a longest run that kept its order.
func (c *comparison) moved(base, target *Policy) map[string]bool {
	place := map[string]int{}
	for i := range base.rules {
		place[base.rules[i].id] = i
	}
	var ids []string
	var places []int
	for i := range target.rules {
		id := target.rules[i].id
		was := id
		if from := c.renamedFrom[id]; from != "" {
			was = from
		}
		if at, both := place[was]; both {
			ids, places = append(ids, id), append(places, at)
		}
	}
	moved := map[string]bool{}
	for _, id := range ids {
		moved[id] = true
	}
	for _, i := range longestIncreasing(places) {
		delete(moved, ids[i])
	}
	return moved
}

// longestIncreasing gives the indexes of a longest increasing subsequence.
func longestIncreasing(values []int) []int {
	before := make([]int, len(values))
	var ends []int // ends[k]: index of the smallest last value of a run of k+1
	for i, v := range values {
		k, _ := slices.BinarySearchFunc(ends, v, func(at, v int) int { return values[at] - v })
		before[i] = -1
		if k > 0 {
			before[i] = ends[k-1]
		}
		if k == len(ends) {
			ends = append(ends, i)
		} else {
			ends[k] = i
		}
	}
	var run []int
	if len(ends) > 0 {
		for i := ends[len(ends)-1]; i >= 0; i = before[i] {
			run = append(run, i)
		}
	}
	return run
}

// ofTarget says what happened to a rule that the target has.
func (c *comparison) ofTarget(u *rule, moved map[string]bool) (RuleChange, bool) {
	change := RuleChange{RuleID: u.id, Fields: []FieldChange{}, Direction: DirectionNone}
	was := c.base[u.id]
	if from := c.renamedFrom[u.id]; from != "" {
		change.Change, change.RenamedFrom = ChangeRenamed, from
		return change, true
	}
	if was == nil {
		change.Change, change.ActionChanged, change.Decision, change.Direction = ChangeAdded, true, &FromTo{To: &u.decision}, ofPresence(u)
		return change, true
	}
	change.Fields = fieldChanges(was, u)
	switch {
	case len(change.Fields) > 0:
		change.Change = ChangeModified
		change.ActionChanged = was.decision != u.decision || was.observe != u.observe
		change.Direction = direction(was, u, change.Fields)
		if was.decision != u.decision {
			change.Decision = &FromTo{From: &was.decision, To: &u.decision}
		}
	case moved[u.id]:
		change.Change = ChangeReordered // never changes a decision, only its reason
	default:
		return change, false
	}
	return change, true
}

// ofPresence is what a rule does by being there.
func ofPresence(u *rule) string {
	switch {
	case u.observe:
		return DirectionNone
	case u.decision == Allow:
		return DirectionLooser
	case len(u.lifts) > 0 || u.decision == RequireApproval:
		// It lets pass with an approval what the floor or the default blocks,
		// and stops what another rule allows.
		return DirectionUnknown
	}
	return DirectionTighter
}

func opposite(direction string) string {
	switch direction {
	case DirectionLooser:
		return DirectionTighter
	case DirectionTighter:
		return DirectionLooser
	}
	return direction
}

// texts of a rule that decide nothing.
var textFields = []string{"message", "remedy", "reason_code"}

// direction of a modified rule: known where nothing but the decision, the mode or
// the terms of its approval changed.
func direction(was, is *rule, fields []FieldChange) string {
	for _, f := range fields {
		if f.Path != "decision" && f.Path != "mode" && !slices.Contains(textFields, f.Path) && !isTerms(f) {
			return DirectionUnknown
		}
	}
	switch {
	case was.observe && is.observe:
		return DirectionNone
	case is.unless != nil && (was.decision == Allow) != (is.decision == Allow):
		return DirectionUnknown // tables without names are in the exception of an ALLOW, and in no other
	case was.observe:
		return ofPresence(is)
	case is.observe:
		return opposite(ofPresence(was))
	case is.decision.Strictness() > was.decision.Strictness():
		return DirectionTighter
	case is.decision.Strictness() < was.decision.Strictness():
		return DirectionLooser
	}
	return ofTerms(was, is)
}

// ofTerms is the direction of an approval's terms. The smallest of all rules that match
// holds, so more rows or seconds are never tighter. How long an approval lives without a
// time of its own is the service's setting, which no document tells.
func ofTerms(was, is *rule) string {
	rows := func(r *rule) int64 {
		if r.maxRows == nil {
			return math.MaxInt64
		}
		return *r.maxRows
	}
	shows := func(r *rule) int {
		switch {
		case r.dryRun == nil:
			return 0
		case r.dryRun.Rows:
			return 2
		}
		return 1
	}
	asks := func(r *rule) int { // for a reason
		if r.needsReason {
			return 1
		}
		return 0
	}
	directions := []int{cmp.Compare(rows(is), rows(was)), cmp.Compare(is.ttlSeconds, was.ttlSeconds), cmp.Compare(is.grantSeconds, was.grantSeconds), cmp.Compare(shows(is), shows(was)), asks(was) - asks(is)}
	looser, tighter := slices.Contains(directions, 1), slices.Contains(directions, -1)
	switch {
	case directions[1] != 0 && (is.ttlSeconds == 0 || was.ttlSeconds == 0), looser && tighter:
		return DirectionUnknown
	case looser:
		return DirectionLooser
	case tighter:
		return DirectionTighter
	}
	return DirectionNone
}

// isTerms reports a change of an approval's terms, of those of dry runs, or of what a request has to tell.
func isTerms(f FieldChange) bool {
	return strings.HasPrefix(f.Path, "approval") || strings.HasPrefix(f.Path, "dry_run") || f.Path == "reason"
}

// fieldChanges compares two rules of one id, field by field.
func fieldChanges(was, is *rule) []FieldChange {
	a, b := was.meaning(), is.meaning()
	a["message"], b["message"] = was.message, is.message
	a["remedy"], b["remedy"] = was.remedy, is.remedy
	for key := range b { // not every rule has all
		if _, both := a[key]; !both {
			a[key] = nil
		}
	}
	changes := []FieldChange{}
	for _, key := range slices.Sorted(maps.Keys(a)) {
		changes = appendChanges(changes, key, a[key], b[key])
	}
	return changes
}

// appendChanges goes into objects, so that a path names one check.
func appendChanges(to []FieldChange, path string, was, is any) []FieldChange {
	if reflect.DeepEqual(was, is) {
		return to
	}
	before, isMap := was.(map[string]any)
	after, areMaps := is.(map[string]any)
	if isMap && areMaps {
		keys := map[string]bool{}
		for _, m := range []map[string]any{before, after} {
			for key := range m {
				keys[key] = true
			}
		}
		for _, key := range slices.Sorted(maps.Keys(keys)) {
			to = appendChanges(to, path+"."+key, before[key], after[key])
		}
		return to
	}
	old, isList := was.([]string)
	now, areLists := is.([]string)
	if isList && areLists {
		return append(to, FieldChange{Path: path, Added: without(now, old), Removed: without(old, now), list: true})
	}
	return append(to, FieldChange{Path: path, From: was, To: is})
}

// without is what of a list the other has not.
func without(list, other []string) []string {
	has := make(map[string]bool, len(other))
	for _, s := range other {
		has[s] = true
	}
	out := []string{}
	for _, s := range list {
		if !has[s] {
			out = append(out, s)
		}
	}
	return out
}
