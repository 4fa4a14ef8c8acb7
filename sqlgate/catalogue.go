package sqlgate

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"writegate/commands/fault"
	"writegate/sqlgate/catalog"
	"writegate/sqlgate/classify"
	"writegate/sqlgate/pgexec"
	"writegate/sqlgate/replay"
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
	snapshot *snapshot     // nil: never read
	changes  uint64        // by the gate, that it shows
	other    bool          // a server was met since that it is not of
	reading  chan struct{} // closed when the reading under way ends; nil: none
	failed   error         // of the last reading
	again    time.Time     // no other reading before

	keeping sync.Mutex
	kept    atomic.Pointer[keptCatalogue]
}

// A snapshot is one with the reading that it is of.
type snapshot struct {
	*catalog.Snapshot
	read  pgexec.CatalogueRead
	began time.Time // the reading
	major int       // that its views were judged for
}

// A keptCatalogue is the snapshot that this gate looked for in the log, or wrote there, last.
type keptCatalogue struct {
	hash   [32]byte
	packed []byte
	bases  int
}

// mostBases bounds how many other snapshots one that is kept as a difference is put together from.
const mostBases = 16

// keepCatalogue has the log keep a snapshot, where it does not yet: whole, or as the difference to
// another one where that is much smaller. Nothing of it is looked for in the log but where the
// snapshot is another one than last time.
func (g *Gate) keepCatalogue(ctx context.Context, s *catalog.Snapshot) error {
	k, hash := &g.catalogue, s.Sum()
	if kept := k.kept.Load(); kept != nil && kept.hash == hash {
		return nil
	}
	k.keeping.Lock()
	defer k.keeping.Unlock()
	last := k.kept.Load()
	if last != nil && last.hash == hash {
		return nil
	}
	ctx = context.WithoutCancel(ctx) // others wait for it too
	found, known, err := g.Commands.KeptCatalog(ctx, hash)
	if err != nil {
		return err
	}
	now := &keptCatalogue{hash, s.Packed(), found.Bases}
	if !known {
		packed, base := now.packed, [32]byte{}
		if last != nil && last.bases < mostBases {
			difference, err := catalog.Difference(last.packed, now.packed)
			if err != nil {
				return err
			}
			if len(difference) < len(packed)/2 {
				packed, base, now.bases = difference, last.hash, last.bases+1
			}
		}
		if err := g.Commands.RecordCatalog(ctx, hash, base, packed); err != nil {
			return err
		}
	}
	k.kept.Store(now)
	return nil
}

// withCatalogue adds what stands behind the names in a statement.
func (g *Gate) withCatalogue(ctx context.Context, s *submission, c classify.Classification, text string) classify.Classification {
	s.judged, s.definitions, s.catalogue = nil, nil, pgexec.CatalogueRead{}
	if g.CatalogRefresh == 0 || s.unknown != nil || c.Class == classify.ClassSession || c.Class == classify.ClassTCL {
		return c
	}
	snapshot, err := g.catalogueFor(ctx, s)
	if err != nil {
		s.unknown = err
		return c
	}
	s.catalogue = snapshot.read
	var plain []string
	if c.Plain != nil && snapshot.Plain(c.Types) {
		plain, c = c.Types, c.WithPlainTypes()
	}
	var operators []string
	if snapshot.Operators() {
		names := classify.NamesOf(text)
		operators = names.Operators
		for _, word := range names.Words {
			operators = append(operators, impliedOperators[word]...)
		}
		operators = slices.Compact(slices.Sorted(slices.Values(operators)))
	}
	defaults := slices.Contains(c.QueryTypes, classify.TypeUpdate) && strings.Contains(strings.ToLower(text), "default")
	found, definitions := snapshot.Resolve(&c, operators, defaults, g.Classifier.Keys(), plain)
	s.definitions = (*pgexec.Definitions)(definitions)
	s.judged = &replay.Judged{Snapshot: snapshot.Snapshot, ServerMajor: snapshot.major, Text: c, Operators: operators, Defaults: defaults, Plain: plain, Found: found}
	if found == nil {
		c.Engine.Catalog = snapshot.Hash()
		return c
	}
	found.Catalog = snapshot.Hash()
	s.judged.With = c.WithBeside(found.Beside)
	return s.judged.With
}

// behind is what stands in the database behind the names of the statement, for people.
func (s *submission) behind() []string {
	if s.judged == nil {
		return nil
	}
	var lines []string
	for _, name := range s.judged.Plain {
		lines = append(lines, name+" is a type that runs no code of the database's users")
	}
	if s.judged.Found != nil {
		lines = append(lines, s.judged.Found.Lines...)
	}
	return lines
}

// catalogueFor is the snapshot to judge a statement by: in a block that has defined
// something itself, one that shows it.
func (g *Gate) catalogueFor(ctx context.Context, s *submission) (*snapshot, error) {
	if s.wire == nil {
		return g.catalogueNow(ctx)
	}
	u := &s.wire.wire.unit
	if !u.defines || u.block == nil || u.failed {
		return g.catalogueNow(ctx)
	}
	if u.catalogue == nil || time.Since(u.catalogue.began) >= g.CatalogRefresh {
		snapshot, err := g.snapshotOf(func(each func([]byte) error) (pgexec.CatalogueRead, error) {
			return u.block.Catalogue(ctx, g.Classifier.Keys(), each)
		})
		if err != nil {
			g.Logger.Warn("the catalogue of the database could not be read in a transaction that has defined something", "source", "gate", "error", err)
			return nil, unread(err)
		}
		u.catalogue = snapshot
	}
	return u.catalogue, nil
}

// catalogueNow is the snapshot of what is committed: the newest, which is read again beside the
// statement where it is old, and before it where the gate itself has changed definitions. An error
// is that none was ever read.
func (g *Gate) catalogueNow(ctx context.Context) (*snapshot, error) {
	k, changes := &g.catalogue, g.Database.Changes()
	patience, cancel := context.WithTimeout(ctx, catalogueWait)
	defer cancel()
	var snapshot *snapshot
	var failed error
	for {
		major := g.Classifier.ServerMajor()
		k.mu.Lock()
		if k.reading == nil && (k.snapshot == nil || k.other || k.changes < changes || k.snapshot.major != major || time.Since(k.snapshot.began) >= g.CatalogRefresh) && !time.Now().Before(k.again) {
			k.reading = make(chan struct{})
			go g.readCatalogue(k.reading)
		}
		reading := k.reading
		wait := reading != nil && (k.snapshot == nil || k.other || k.changes < changes)
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
		return nil, unread(failed)
	}
	return snapshot, nil
}

// catalogueAgain has the catalogue read anew where it is not of a server that was met, and waits a moment for that.
func (g *Gate) catalogueAgain(ctx context.Context, server string) pgexec.CatalogueRead {
	k := &g.catalogue
	k.mu.Lock()
	k.other = k.other || k.snapshot != nil && k.snapshot.read.Server != server
	k.mu.Unlock()
	s, err := g.catalogueNow(ctx)
	if err != nil {
		return pgexec.CatalogueRead{}
	}
	return s.read
}

// unread is the fault of a statement of which the catalogue can't tell.
func unread(cause error) error {
	f := fault.New(fault.DBUnavailable, "The catalogue of the database could not be read, so it is not known what stands behind the names in the statement. Send it again later; the operator finds the reason in the log.").Because(cause)
	for key, value := range fault.Of(cause).Details { // such as the timeline of a server that was left behind
		f = f.With(key, value)
	}
	return f
}

// readCatalogue reads the catalogue once. What was known stays where that fails.
func (g *Gate) readCatalogue(done chan struct{}) {
	changes := g.Database.Changes()
	snapshot, err := g.snapshotOf(func(each func([]byte) error) (pgexec.CatalogueRead, error) {
		return g.Database.Catalogue(context.Background(), g.Classifier.Keys(), each)
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
	k.snapshot, k.changes, k.other = snapshot, changes, false
	if took := time.Since(snapshot.began); took > catalogueWait { // clients whose statements change definitions would have it read all the time
		k.again = time.Now().Add(took)
	}
}

// snapshotOf is the snapshot of what one reading hands on.
func (g *Gate) snapshotOf(read func(each func(row []byte) error) (pgexec.CatalogueRead, error)) (*snapshot, error) {
	var entries []catalog.Entry
	began := time.Now()
	of, err := read(func(row []byte) error {
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
	major := g.Classifier.ServerMajor() // that connection may have been the first
	var busy error                      // a view that found no parser free would be judged otherwise the next time, and from the log
	made, err := catalog.New(entries, func(sql string) (classify.Classification, error) {
		c, err := g.Classifier.Classify(context.Background(), sql)
		if fault.CodeOf(err) == fault.RateLimitExceeded {
			busy = err
		}
		return c, err
	})
	if err = cmp.Or(err, busy); err != nil {
		return nil, err
	}
	of.Again = g.catalogueAgain
	return &snapshot{made, of, began, major}, nil
}
