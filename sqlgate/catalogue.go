package sqlgate

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"sync"
	"time"

	"writegate/commands/fault"
	"writegate/sqlgate/catalog"
	"writegate/sqlgate/classify"
	"writegate/sqlgate/pgexec"
)

// catalogueWait is how long a statement waits for a reading of the catalogue that a change
// made by the gate has called for; one that takes longer serves those behind it.
const catalogueWait = time.Second

// catalogueAgain is how long nobody tries to read it after that has failed.
const catalogueAgain = 2 * time.Second

// impliedOperators are those that the grammar writes where a text has a word, by their names
// as if they stood there (gram.y, transformAExprIn and its like).
var impliedOperators = map[string][]string{
	"in": {"=", "<>"}, "between": {">=", "<=", "<", ">"}, "like": {"~~", "!~~"}, "ilike": {"~~*", "!~~*"}, "similar": {"~", "!~"},
	"case": {"="}, "nullif": {"="}, "distinct": {"="}, "using": {"="}, "natural": {"="},
}

// A catalogue is the newest snapshot of the database's catalogue. It is read again by the
// first statement that finds it old, for those behind it.
type catalogue struct {
	mu       sync.Mutex
	snapshot *catalog.Snapshot // nil: never read
	began    time.Time         // of the reading that it is of
	changes  uint64            // by the gate, that it shows
	major    int               // that its views were judged for
	reading  chan struct{}     // closed when the reading under way ends; nil: none
	failed   error             // of the last reading
	again    time.Time         // no other reading before
}

// withCatalogue adds what stands behind the names in a statement.
func (g *Gate) withCatalogue(ctx context.Context, s *submission, c classify.Classification, text string) classify.Classification {
	s.behind, s.definitions = nil, nil
	if g.CatalogRefresh == 0 || s.unknown != nil || c.Class == classify.ClassSession || c.Class == classify.ClassTCL {
		return c
	}
	snapshot, err := g.catalogueFor(ctx, s)
	if err != nil {
		s.unknown = err
		return c
	}
	var operators []string
	if snapshot.Operators() {
		names := classify.NamesOf(text)
		operators = names.Operators
		for _, word := range names.Words {
			operators = append(operators, impliedOperators[word]...)
		}
	}
	defaults := slices.Contains(c.QueryTypes, classify.TypeUpdate) && strings.Contains(strings.ToLower(text), "default")
	found, definitions := snapshot.Resolve(&c, operators, defaults, g.Classifier.Keys())
	s.definitions = (*pgexec.Definitions)(definitions)
	if found == nil {
		c.Engine.Catalog = snapshot.Hash()
		return c
	}
	s.behind = found.Lines
	found.Catalog = snapshot.Hash()
	return c.WithBeside(found.Beside)
}

// catalogueFor is the snapshot to judge a statement by: in a block that has defined
// something itself, one that shows it.
func (g *Gate) catalogueFor(ctx context.Context, s *submission) (*catalog.Snapshot, error) {
	if s.wire == nil {
		return g.catalogueNow(ctx)
	}
	u := &s.wire.wire.unit
	if !u.defines || u.block == nil || u.failed {
		return g.catalogueNow(ctx)
	}
	if now := time.Now(); u.catalogue == nil || now.Sub(u.read) >= g.CatalogRefresh {
		snapshot, err := g.snapshotOf(func(each func([]byte) error) error { return u.block.Catalogue(ctx, g.Classifier.Keys(), each) })
		if err != nil {
			return nil, err
		}
		u.catalogue, u.read = snapshot, now
	}
	return u.catalogue, nil
}

// catalogueNow is the snapshot of what is committed: the newest, which is read again beside the
// statement where it is old, and before it where the gate itself has changed definitions. An
// error is that none was ever read.
func (g *Gate) catalogueNow(ctx context.Context) (*catalog.Snapshot, error) {
	k, changes := &g.catalogue, g.Database.Changes()
	patience, cancel := context.WithTimeout(ctx, catalogueWait)
	defer cancel()
	var snapshot *catalog.Snapshot
	var failed error
	for {
		major := g.Classifier.ServerMajor()
		k.mu.Lock()
		if k.reading == nil && (k.snapshot == nil || k.changes < changes || k.major != major || time.Since(k.began) >= g.CatalogRefresh) && !time.Now().Before(k.again) {
			k.reading = make(chan struct{})
			go g.readCatalogue(k.reading)
		}
		reading := k.reading
		wait := reading != nil && (k.snapshot == nil || k.changes < changes)
		snapshot, failed = k.snapshot, k.failed
		k.mu.Unlock()
		if !wait {
			break
		}
		until := patience.Done()
		if snapshot == nil {
			until = ctx.Done()
		}
		select {
		case <-reading:
			continue
		case <-until:
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		break
	}
	if snapshot == nil {
		return nil, fault.New(fault.DBUnavailable, "The catalogue of the database could not be read, so it is not known what stands behind the names in the statement. Send it again later; the operator finds the reason in the log.").Because(failed)
	}
	return snapshot, nil
}

// readCatalogue reads the catalogue once. What was known stays where that fails.
func (g *Gate) readCatalogue(done chan struct{}) {
	began, changes, major := time.Now(), g.Database.Changes(), 0
	snapshot, err := g.snapshotOf(func(each func([]byte) error) error {
		err := g.Database.Catalogue(context.Background(), g.Classifier.Keys(), each)
		major = g.Classifier.ServerMajor() // that connection may have been the first
		return err
	})
	k := &g.catalogue
	k.mu.Lock()
	defer k.mu.Unlock()
	defer close(done)
	k.reading, k.failed = nil, err
	if err != nil {
		k.again = time.Now().Add(catalogueAgain)
		g.Logger.Warn("the catalogue of the database could not be read; what was known of it goes on", "source", "gate", "known", k.snapshot != nil, "error", err)
		return
	}
	k.snapshot, k.began, k.changes, k.major = snapshot, began, changes, major
	if took := time.Since(began); took > catalogueWait { // clients whose statements change definitions would have it read all the time
		k.again = time.Now().Add(took)
	}
}

// snapshotOf is the snapshot of what one reading hands on.
func (g *Gate) snapshotOf(read func(each func(row []byte) error) error) (*catalog.Snapshot, error) {
	var entries []catalog.Entry
	err := read(func(row []byte) error {
		if row == nil {
			entries = nil
			return nil
		}
		var e catalog.Entry
		err := json.Unmarshal(row, &e)
		entries = append(entries, e)
		return err
	})
	if err != nil {
		return nil, err
	}
	return catalog.New(entries, func(sql string) (classify.Classification, error) {
		return g.Classifier.Classify(context.Background(), sql)
	})
}
