package controlplane

import (
	"fmt"
	"slices"
	"strings"
)

// A renewal is what the gate found when it looked again, as the card was opened, at what a
// write reaches.
type renewal struct {
	Changed []string // since it was asked for, as sentences
	Failed  string   // why it could not look
}

// renew puts what a pending write reaches now in the place of what it reached when it was
// asked for. Nothing is done where nobody asked the gate, or it has nothing to look at.
func (a *approval) renew() {
	now := a.ReachedNow
	switch {
	case now == nil:
		return
	case now.Omitted != "":
		a.Renewed = &renewal{Failed: now.Omitted}
		return
	}
	a.Renewed = &renewal{Changed: changedReach(a.Impact, now)}
	if a.Impact == nil {
		a.Impact = &plan{}
	}
	a.Impact.Tables, a.Impact.More, a.Impact.Omitted = now.Tables, now.More, ""
}

// changedReach tells two looks apart, but for numbers of rows, which always change.
func changedReach(before, now *plan) (changed []string) {
	if len(before.tables()) == 0 {
		return nil // nobody looked then
	}
	in := func(tables []reached, t reached) (reached, bool) {
		i := slices.IndexFunc(tables, func(o reached) bool { return o.Table == t.Table && o.How == t.How && o.From == t.From })
		if i < 0 {
			return reached{}, false
		}
		return tables[i], true
	}
	missing := func(list, of []string) string {
		return strings.Join(slices.DeleteFunc(slices.Clone(list), func(one string) bool { return slices.Contains(of, one) }), "; ")
	}
	for _, t := range now.Tables {
		old, was := in(before.Tables, t)
		if !was && before.More == 0 && t.How != "named" {
			changed = append(changed, fmt.Sprintf("It reaches %s too.", t.Table))
		}
		if fires := missing(t.Triggers, old.Triggers); fires != "" && (was || before.More == 0) {
			changed = append(changed, fmt.Sprintf("A write of %s fires %s.", t.Table, fires))
		}
	}
	for _, t := range before.Tables {
		later, is := in(now.Tables, t)
		switch gone := missing(t.Triggers, later.Triggers); {
		case !is && now.More == 0:
			changed = append(changed, fmt.Sprintf("It does not reach %s any more.", t.Table))
		case is && gone != "":
			changed = append(changed, fmt.Sprintf("A write of %s does not fire %s any more.", t.Table, gone))
		}
	}
	return changed
}
