// Package catalog says of a statement what its text cannot: what stands in the database
// behind the names in it. A view reads tables and calls functions that no statement names; a
// write fires triggers, and foreign keys and rules take it to other tables.
//
// A Snapshot is made of what package pgexec reads of the system catalogues and is a plain
// value: pure, read-only, for any number of goroutines (design/classification.md part 10).
// It adds facts and signals to a classification, and takes none away.
package catalog

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"writegate/sqlgate/classify"
)

// An Entry is one line of what the server says: a relation, or the name of a function or an
// operator of the users' that a text may call when it means one of PostgreSQL's, or names none.
type Entry struct {
	Relation string `json:"relation,omitempty"` // schema.table
	Kind     string `json:"kind,omitempty"`     // pg_class.relkind

	View     string    `json:"view,omitempty"`     // the query of a view, with all names qualified
	Code     []Code    `json:"code,omitempty"`     // functions that are called for it: of the users', and of PostgreSQL's own that may do more than answer
	Triggers []Trigger `json:"triggers,omitempty"` // that fire
	Rules    []Rule    `json:"rules,omitempty"`    // on writes
	Keys     []string  `json:"keys,omitempty"`     // columns that are unique by themselves
	Columns  []string  `json:"columns,omitempty"`  // those of all columns whose name may be that of a key
	Refers   []Refers  `json:"refers,omitempty"`   // foreign keys that carry a change here
	Parents  []string  `json:"parents,omitempty"`  // whose rows those of this are
	Part     bool      `json:"part,omitempty"`     // it is a partition
	Split    []string  `json:"split,omitempty"`    // columns that say in which partition of it a row is; * = an expression
	Derived  []string  `json:"derived,omitempty"`  // generated columns
	Reads    []string  `json:"reads,omitempty"`    // relations that its policies read
	Told     string    `json:"told,omitempty"`     // MD5 of the texts of its rules on writes, triggers and policies

	Call     string `json:"call,omitempty"`     // schema.name of a function with the name of a built-in
	Operator string `json:"operator,omitempty"` // schema.name of an operator with the name of a built-in
	Always   string `json:"always,omitempty"`   // schema.name of a function that any text may call
	Plain    string `json:"plain,omitempty"`    // schema.name of a type that runs no code of the users', whatever is done with its values

	// Of a relation or a plain type, which of two servers, or moments, may differ where all else is the same.
	OID    uint32   `json:"oid,omitempty"`
	Hashes []string `json:"hashes,omitempty"` // of the rows of the catalogues that define it, by kind; "" = none of that kind
}

// Events of a relation (pg_trigger.tgtype, and one more).
const (
	Read     = 1
	Insert   = 1 << 2
	Delete   = 1 << 3
	Update   = 1 << 4
	Truncate = 1 << 5
	Refresh  = 1 << 6 // of a materialized view
)

// Code is a call that an event makes.
type Code struct {
	On   int    `json:"on"`
	By   string `json:"by"`             // default, check, domain, index, partition key, policy, type, view
	Call string `json:"call"`           // schema.name
	Args int    `json:"args,omitempty"` // of one of PostgreSQL's own
}

// A Trigger fires with an event.
type Trigger struct {
	On      int      `json:"on"`
	Call    string   `json:"call"`
	Of      []string `json:"of,omitempty"` // columns of UPDATE OF; none: any
	Instead bool     `json:"instead,omitempty"`
	Above   bool     `json:"above,omitempty"` // of a partition: it is its parent's, too
}

// A Rule rewrites a write.
type Rule struct {
	On      int      `json:"on"`
	Instead bool     `json:"instead,omitempty"`
	Names   []string `json:"names,omitempty"` // relations, of which it may write any
}

// Refers is a foreign key by which a change of another table's rows changes this one's.
type Refers struct {
	To       string   `json:"to"`
	Key      []string `json:"key"`                 // the columns that are referred to
	OnDelete int      `json:"on_delete,omitempty"` // Delete or Update: what becomes of the rows here
	OnUpdate int      `json:"on_update,omitempty"` // Update
}

// A Snapshot is the catalogue as it was read at one moment.
type Snapshot struct {
	hash      string
	sum       [32]byte
	packed    []byte
	relations map[string]*relation
	calls     map[string]string // by the name alone
	operators map[string]string
	always    []string
	plain     map[string]defined
	builtins  map[string]*classify.Classification // of calls of PostgreSQL's own functions; nil: it only answers
}

type relation struct {
	Entry
	view     *classify.Classification // of a view; nil: it could not be classified
	types    []string                 // plain ones that it was judged by
	defined  []defined                // more than one where relations share the name
	children []*relation
	below    []*relation // children that have children
	parted   bool        // it has children, which are locked only where rows are
	referred []reference // by others
	parents  []*relation // of a partition
	pruned   bool
	plain    bool // nothing stands behind it
	bare     bool // but for what stands behind its parent, too
}

type defined struct {
	oid    uint32
	hashes []string
}

type reference struct {
	from *relation
	Refers
}

// New makes a snapshot of what was read. definition classifies the query of a view; one that
// it refuses counts as a call of something unknown.
func New(entries []Entry, definition func(sql string) (classify.Classification, error)) (*Snapshot, error) {
	s := &Snapshot{relations: make(map[string]*relation, len(entries)), calls: map[string]string{}, operators: map[string]string{}, plain: map[string]defined{}, builtins: map[string]*classify.Classification{}}
	type entry struct {
		*Entry
		defined
		line []byte
	}
	all := make([]entry, len(entries))
	for i := range entries {
		e := &entries[i]
		all[i] = entry{Entry: e, defined: defined{e.OID, e.Hashes}}
		e.OID, e.Hashes = 0, nil
		line, err := json.Marshal(e)
		if err != nil {
			return nil, fmt.Errorf("catalog: %w", err)
		}
		all[i].line = append(line, '\n')
	}
	slices.SortFunc(all, func(a, b entry) int { // what shares a name, too, has one order
		return cmp.Or(strings.Compare(a.Relation+"\x00"+a.Call+"\x00"+a.Operator+"\x00"+a.Always+"\x00"+a.Plain, b.Relation+"\x00"+b.Call+"\x00"+b.Operator+"\x00"+b.Always+"\x00"+b.Plain), bytes.Compare(a.line, b.line))
	})
	sum, packing := sha256.New(), packer{}
	var order []*relation // of one content all is found in one order
	for i := range all {
		e, d := all[i].Entry, all[i].defined
		sum.Write(all[i].line)
		packing.write(all[i].line)
		switch {
		case e.Call != "":
			s.calls[bare(e.Call)] = e.Call
		case e.Operator != "":
			s.operators[bare(e.Operator)] = e.Operator
		case e.Always != "":
			s.always = append(s.always, e.Always)
		case e.Plain != "":
			s.plain[e.Plain] = d
		case s.relations[e.Relation] != nil: // "a.b".c and a."b.c" are one name in the facts
			s.relations[e.Relation].add(e)
			s.relations[e.Relation].defined = append(s.relations[e.Relation].defined, d)
		default:
			r := &relation{Entry: *e, defined: []defined{d}}
			s.relations[e.Relation], order = r, append(order, r)
		}
	}
	var err error
	if s.packed, err = packing.packed(); err != nil {
		return nil, fmt.Errorf("catalog: %w", err)
	}
	sum.Sum(s.sum[:0])
	s.hash = hex.EncodeToString(s.sum[:])
	for _, r := range order {
		if r.View != "" {
			if c, err := definition(r.View); err == nil {
				if c.Plain != nil && s.Plain(c.Types) {
					r.types, c = c.Types, c.WithPlainTypes()
				}
				r.view = &c
			}
		}
		r.Code = slices.DeleteFunc(r.Code, func(c Code) bool { return s.onlyAnswers(&c, definition) })
		for _, parent := range r.Parents {
			if above := s.relations[parent]; above != nil {
				above.children = append(above.children, r)
				if r.Part {
					r.parents = append(r.parents, above)
				}
			}
		}
		for _, to := range r.Refers {
			if referred := s.relations[to.To]; referred != nil {
				referred.referred = append(referred.referred, reference{r, to})
			}
		}
	}
	for _, r := range order {
		r.parted = len(r.children) > 0
		for _, c := range r.children {
			if len(c.children) > 0 {
				r.below = append(r.below, c)
			}
		}
	}
	for _, r := range order {
		r.prune()
	}
	return s, nil
}

// ofServer is what the name of a function of PostgreSQL's own begins with.
const ofServer = "pg_catalog."

// onlyAnswers tells of a function of PostgreSQL's own that it does nothing but give a value, be it
// another each time.
func (s *Snapshot) onlyAnswers(code *Code, definition func(sql string) (classify.Classification, error)) bool {
	if !strings.HasPrefix(code.Call, ofServer) {
		return false
	}
	call := classify.BuiltinCall(strings.TrimPrefix(code.Call, ofServer), code.Args)
	judged, known := s.builtins[call]
	if !known {
		c, err := definition("SELECT " + call)
		if err != nil || slices.ContainsFunc(c.RiskSignals, func(signal string) bool {
			return signal != classify.SignalVolatileFunction && signal != classify.SignalSequenceChange
		}) {
			judged = &c
		}
		s.builtins[call] = judged
	}
	return judged == nil
}

// prune forgets partitions behind which nothing stands, and tells of a relation whether
// anything does.
func (r *relation) prune() {
	if r.pruned {
		return
	}
	r.pruned = true
	r.children = slices.DeleteFunc(r.children, func(c *relation) bool {
		c.prune()
		return c.Part && c.bare
	})
	own := slices.ContainsFunc(r.Triggers, func(t Trigger) bool { return !t.Above })
	r.bare = r.View == "" && !own && len(r.Code)+len(r.Reads)+len(r.Rules)+len(r.children)+len(r.referred) == 0 && r.Told == ""
	r.plain = r.bare && len(r.Triggers) == 0 && len(r.parents) == 0
}

// add puts another relation of the same name to it.
func (r *relation) add(e *Entry) {
	if r.View == "" {
		r.View = e.View
	} else if e.View != "" {
		r.View += ";" + e.View // no one statement: it counts as unknown
	}
	if e.Kind == "v" {
		r.Kind = "v"
	}
	r.Code, r.Triggers, r.Rules = append(r.Code, e.Code...), append(r.Triggers, e.Triggers...), append(r.Rules, e.Rules...)
	r.Split, r.Derived = append(r.Split, e.Split...), append(r.Derived, e.Derived...)
	r.Reads, r.Told = append(r.Reads, e.Reads...), r.Told+e.Told
	r.Refers, r.Parents, r.Part = append(r.Refers, e.Refers...), append(r.Parents, e.Parents...), r.Part && e.Part
	r.Keys = slices.DeleteFunc(r.Keys, func(k string) bool { return !slices.Contains(e.Keys, k) })
	r.Columns = append(r.Columns, e.Columns...)
}

// bare is the last part of schema.name, where the name has no dot of its own.
func bare(qualified string) string {
	_, name, _ := strings.Cut(qualified, ".")
	return name
}

// Plain tells of types, schema.name, that none of them runs code of the users'.
func (s *Snapshot) Plain(types []string) bool {
	return !slices.ContainsFunc(types, func(name string) bool { _, plain := s.plain[name]; return !plain })
}

// Hash is the SHA-256 of all entries in their order, a line of JSON each; hex.
func (s *Snapshot) Hash() string { return s.hash }

// Sum is Hash as bytes.
func (s *Snapshot) Sum() [32]byte { return s.sum }

// Relations is how many relations there are.
func (s *Snapshot) Relations() int { return len(s.relations) }
