package catalog

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"writegate/sqlgate/classify"
)

// Definitions are how the relations and plain types that a statement was judged by are defined in a snapshot.
type Definitions struct {
	OIDs   []uint32
	Types  []uint32
	Parts  uint8       // a bit for each of the hashes of relations that are meant; the first is always
	Hashes string      // a line for each relation, and then for each type, as the server writes them
	Absent [][2]string // schema and name of relations that are not in the snapshot
	Behind bool        // some are locked only as the statement runs
}

// definitions are those of what the statement names and of what was visited behind it; nil
// where it names nothing of the users'.
func (w *resolution) definitions(c *classify.Classification) *Definitions {
	var d Definitions
	relations := make(map[*relation]bool)
	for _, name := range slices.Concat(c.TablesRead, c.TablesWritten) {
		if r := w.s.relations[name]; r != nil {
			relations[r] = true
		} else {
			d.absent(name)
		}
	}
	named := len(relations)
	for v := range w.seen {
		relations[v.r] = true
	}
	for _, r := range w.reached {
		relations[r] = true
	}
	for next := slices.Collect(maps.Keys(relations)); len(next) > 0; {
		r := next[0]
		next = next[1:]
		for _, tree := range r.below {
			if !relations[tree] {
				relations[tree] = true
				next = append(next, tree)
			}
		}
	}
	d.Behind = len(relations) > named
	var all []defined
	for r := range relations {
		all = append(all, r.defined...)
		d.Behind = d.Behind || r.parted
	}
	if len(all)+len(d.Absent)+len(w.plain) == 0 {
		return nil
	}
	switch {
	case slices.ContainsFunc(c.QueryTypes, func(t string) bool { return unplanned[t] }):
		d.Behind = true
	case c.Class == classify.ClassRead: // all is locked as it is planned
		d.Behind = false
	case c.Class != classify.ClassWrite: // what is compared may be what it changes
		d.Behind = false
	}
	slices.SortFunc(all, func(a, b defined) int { return cmp.Compare(a.oid, b.oid) })
	for _, one := range all {
		d.OIDs = append(d.OIDs, one.oid)
		for i, hash := range one.hashes {
			if hash != "" {
				d.Parts |= 1 << i
			}
		}
	}
	var lines []string
	for _, one := range all {
		lines = append(lines, strings.Join(slices.DeleteFunc(slices.Clone(one.hashes), func(hash string) bool { return hash == "" }), " "))
	}
	for _, name := range slices.Compact(slices.Sorted(slices.Values(w.plain))) {
		one := w.s.plain[name]
		d.Types, lines = append(d.Types, one.oid), append(lines, strings.Join(one.hashes, " "))
	}
	d.Hashes = strings.Join(lines, "\n")
	return &d
}

// unplanned are statements that lock what they name only as they run, and define nothing.
var unplanned = map[string]bool{classify.TypeTruncate: true, classify.TypeRefresh: true, classify.TypeCopyFrom: true, classify.TypeExplain: true}

// absent adds a relation that is not known, under each schema and name that its name in the
// facts may mean. The server's own are as they are, and ?.* is the name of any.
func (d *Definitions) absent(name string) {
	if name == "?.*" {
		return
	}
	for at, c := range name {
		if c != '.' {
			continue
		}
		pair := [2]string{name[:at], name[at+1:]}
		if own := strings.HasPrefix(pair[0], "pg_") || pair[0] == "information_schema"; !own && !slices.Contains(d.Absent, pair) {
			d.Absent = append(d.Absent, pair)
		}
	}
}
