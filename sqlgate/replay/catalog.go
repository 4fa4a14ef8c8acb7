package replay

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"writegate/eventlog/event"
	"writegate/sqlgate/catalog"
	"writegate/sqlgate/classify"
	"writegate/sqlgate/policy"
)

// Keys under which an engine record has what the texts of views were judged with, in gates that
// read the database's catalogues.
const (
	engineKeyColumns = "key_columns"
	engineSearchPath = "search_path"
	engineSQLBytes   = "max_sql_bytes"
	engineTables     = "tables"
)

// RecordClassifier puts into an engine record what of a classifier decides besides the text.
func RecordClassifier(engine map[string]string, cfg classify.Config) {
	engine[engineKeyColumns], engine[engineSearchPath] = strings.Join(cfg.KeyColumns, ","), cfg.SearchPath
	engine[engineSQLBytes], engine[engineTables] = strconv.Itoa(cfg.MaxSQLBytes), classify.Tables()
}

// classifierOf is the configuration that an engine record tells of.
func classifierOf(engine map[string]string, major int) classify.Config {
	cfg := classify.Config{SearchPath: engine[engineSearchPath], ServerMajor: major}
	if columns := engine[engineKeyColumns]; columns != "" {
		cfg.KeyColumns = strings.Split(columns, ",")
	}
	cfg.MaxSQLBytes, _ = strconv.Atoi(engine[engineSQLBytes])
	return cfg
}

// Judged is a statement as it was judged by a snapshot of the catalogues.
type Judged struct {
	Snapshot    *catalog.Snapshot
	ServerMajor int // that its views were judged for
	Text        classify.Classification
	Operators   []string // of the text
	Defaults    bool     // an UPDATE in it may name DEFAULT
	Plain       []string // types that it was judged by as running no code of the users'
	Found       *catalog.Found
	With        classify.Classification // the text's with what was found; unset where that is nothing
}

// Use is what the record of the decision says of it; decided are the facts that decided.
func (j *Judged) Use(decided *policy.Facts) *event.CatalogUse {
	u := &event.CatalogUse{Hash: j.Snapshot.Sum(), Operators: j.Operators, Defaults: j.Defaults, Plain: j.Plain, ServerMajor: j.ServerMajor}
	text := textFacts(&j.Text)
	added := event.CatalogAdded{
		ColumnsWritten: without(decided.ColumnsWritten, text.ColumnsWritten), Functions: without(decided.Functions, text.Functions),
		RiskSignals: without(decided.RiskSignals, text.RiskSignals), TablesRead: without(decided.TablesRead, text.TablesRead), TablesWritten: without(decided.TablesWritten, text.TablesWritten),
	}
	if len(added.ColumnsWritten)+len(added.Functions)+len(added.RiskSignals)+len(added.TablesRead)+len(added.TablesWritten) > 0 {
		u.Added = &added
	}
	if text.Class != decided.Class {
		u.Class = text.Class
	}
	if !slices.Equal(text.Where, decided.Where) {
		u.Where = text.Where
	}
	alone := text // what text and snapshot tell alone
	switch {
	case j.Found == nil:
	case j.Text.Beyond == nil: // which costs nothing more
		alone = textFacts(&j.With)
	default:
		alone = behind(j.Text, j.Found)
	}
	u.Wider = len(compareFacts(decided, alone)) > 0
	return u
}

// behind is a classification with what was found behind its names.
func behind(c classify.Classification, found *catalog.Found) *policy.Facts {
	c.Beyond = nil // what a statement is that calls more than its text tells of, the record can't tell
	if found != nil {
		c = c.WithBeside(found.Beside)
	}
	return textFacts(&c)
}

func textFacts(c *classify.Classification) *policy.Facts {
	return &policy.Facts{Class: c.Class, SafeRead: c.SafeRead, TablesRead: c.TablesRead, TablesWritten: c.TablesWritten, ColumnsWritten: c.ColumnsWritten,
		Functions: c.Functions, RiskSignals: c.RiskSignals, Where: c.Where}
}

// without are the items of a sorted list that another one does not have.
func without(list, other []string) (rest []string) {
	if slices.Equal(list, other) {
		return nil
	}
	for _, item := range list {
		if _, found := slices.BinarySearch(other, item); !found {
			rest = append(rest, item)
		}
	}
	return rest
}

// compareFacts names those of the facts that a snapshot adds to which differ.
func compareFacts(recorded, again *policy.Facts) (fields []string) {
	differ := func(name string, was, is any) {
		fields = append(fields, fmt.Sprintf("facts.%s: recorded %v, by the catalogue %v", name, was, is))
	}
	if recorded.Class != again.Class {
		differ("class", recorded.Class, again.Class)
	}
	if recorded.SafeRead != again.SafeRead {
		differ("safe_read", recorded.SafeRead, again.SafeRead)
	}
	for _, f := range []struct {
		name    string
		was, is []string
	}{
		{"tables_read", recorded.TablesRead, again.TablesRead}, {"tables_written", recorded.TablesWritten, again.TablesWritten}, {"columns_written", recorded.ColumnsWritten, again.ColumnsWritten},
		{"functions", recorded.Functions, again.Functions}, {"risk_signals", recorded.RiskSignals, again.RiskSignals}, {"where", recorded.Where, again.Where},
	} {
		if !slices.Equal(f.was, f.is) {
			differ(f.name, f.was, f.is)
		}
	}
	return fields
}

// Views make what judges the texts of views, for one configuration of a classifier.
type Views func(classify.Config) (func(sql string) (classify.Classification, error), error)

// catalogs are the snapshots that a log keeps.
type catalogs struct {
	views Views
	kept  map[[32]byte]*keptCatalog
	part  *event.CatalogRecorded // what has come of one that is not complete
	read  map[string]*catalog.Snapshot
}

type keptCatalog struct {
	base   [32]byte
	packed []byte
}

// mostRead is how many snapshots are held ready: decisions beside each other name few.
const mostRead = 4

// mostBases bounds how long a chain of differences is followed.
const mostBases = 1024

func (k *catalogs) take(e *event.Envelope) error {
	var p event.CatalogRecorded
	if err := e.Parse(&p); err != nil {
		return fmt.Errorf("event %d: %w", e.Seq, err)
	}
	switch {
	case p.Part == 1:
		k.part = &p
	case k.part == nil || k.part.Hash != p.Hash || k.part.Base != p.Base || k.part.Part+1 != p.Part: // the first of them are missing
		k.part = nil
		return nil
	default:
		k.part.Content, k.part.Part = append(k.part.Content, p.Content...), p.Part
	}
	if p.Part < p.Parts {
		return nil
	}
	if k.kept[p.Hash] == nil {
		k.kept[p.Hash] = &keptCatalog{p.Base, k.part.Content}
	}
	k.part = nil
	return nil
}

// content is what a hash covers.
func (k *catalogs) content(hash [32]byte) ([]byte, error) {
	var chain []*keptCatalog
	for at := hash; at != [32]byte{}; {
		kept := k.kept[at]
		if kept == nil {
			return nil, fmt.Errorf("the log does not hold what was read of the database's catalogues with the hash %x", at)
		}
		if chain = append(chain, kept); len(chain) > mostBases {
			return nil, fmt.Errorf("what was read of the database's catalogues with the hash %x is the difference to too many others", hash)
		}
		at = kept.base
	}
	var content []byte
	for _, one := range slices.Backward(chain) {
		var err error
		if content, err = catalog.Unpack(one.packed, content); err != nil {
			return nil, err
		}
	}
	if sha256.Sum256(content) != hash {
		return nil, fmt.Errorf("what the log holds of the database's catalogues under the hash %x is something else", hash)
	}
	return bytes.Clone(content), nil
}

// snapshot is one as the gate had it that an engine record tells of.
func (k *catalogs) snapshot(hash [32]byte, cfg classify.Config) (*catalog.Snapshot, error) {
	name := fmt.Sprintf("%x %+v", hash, cfg)
	if s := k.read[name]; s != nil {
		return s, nil
	}
	content, err := k.content(hash)
	if err != nil {
		return nil, err
	}
	if k.views == nil {
		return nil, fmt.Errorf("views can't be judged here")
	}
	definition, err := k.views(cfg)
	if err != nil {
		return nil, err
	}
	s, err := catalog.Parse(content, definition)
	if err != nil {
		return nil, err
	}
	if len(k.read) >= mostRead {
		clear(k.read)
	}
	k.read[name] = s
	return s, nil
}

// recompute finds again what stood behind the names of a statement, and says where the record
// has something else.
func (k *catalogs) recompute(d *Decision, engine map[string]string) ([]string, error) {
	u, f := d.Catalog, &d.Facts
	cfg := classifierOf(engine, u.ServerMajor)
	s, err := k.snapshot(u.Hash, cfg)
	if err != nil {
		return nil, err
	}
	text := classify.Classification{QueryType: f.QueryType, QueryTypes: f.QueryTypes, Class: f.Class, Flags: f.Flags, Where: f.Where,
		TablesRead: f.TablesRead, TablesWritten: f.TablesWritten, ColumnsWritten: f.ColumnsWritten, Functions: f.Functions, RiskSignals: f.RiskSignals}
	if !s.Plain(u.Plain) {
		return []string{fmt.Sprintf("catalog.plain: recorded %v, and not each of them is plain by the catalogue", u.Plain)}, nil
	}
	if u.Class != "" {
		text.Class = u.Class
	}
	if len(u.Where) > 0 {
		text.Where = u.Where
	}
	if a := u.Added; a != nil {
		text.TablesRead, text.TablesWritten, text.ColumnsWritten = without(f.TablesRead, a.TablesRead), without(f.TablesWritten, a.TablesWritten), without(f.ColumnsWritten, a.ColumnsWritten)
		text.Functions, text.RiskSignals = without(f.Functions, a.Functions), without(f.RiskSignals, a.RiskSignals)
		if slices.Contains(f.RiskSignals, classify.SignalOversizedFacts) {
			return nil, fmt.Errorf("more stood behind the names of the statement than its facts have room for")
		}
	}
	text.SafeRead = text.Class == classify.ClassRead && len(text.RiskSignals) == 0
	found, _ := s.Resolve(&text, u.Operators, u.Defaults, append([]string{"id"}, cfg.KeyColumns...), u.Plain)
	again := behind(text, found)
	if !u.Wider {
		return compareFacts(f, again), nil
	}
	if found == nil {
		return nil, nil
	}
	// More than was found is right here, less is not.
	both := text.WithBeside(found.Beside).WithBeside(classify.Beside{TablesRead: f.TablesRead, TablesWritten: f.TablesWritten, ColumnsWritten: f.ColumnsWritten,
		Functions: f.Functions, Classes: []string{f.Class}, Unkeyed: found.Unkeyed})
	both.RiskSignals = slices.Compact(slices.Sorted(slices.Values(slices.Concat(both.RiskSignals, f.RiskSignals))))
	both.SafeRead = f.SafeRead && again.SafeRead
	if !slices.Contains(f.Where, classify.WhereKeyEquality) || !found.Unkeyed {
		both.Where = f.Where
	}
	return compareFacts(f, textFacts(&both)), nil
}

// catalogEngine leaves out of an engine record what the texts of views were judged with: it is taken from the record.
func catalogEngine(m map[string]string) {
	maps.DeleteFunc(m, func(key, _ string) bool {
		return key == engineKeyColumns || key == engineSearchPath || key == engineSQLBytes || key == engineTables
	})
}
