package classify

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync/atomic"

	lru "github.com/hashicorp/golang-lru/v2"

	"writegate/commands/fault"
)

// Limits of the lanes (part 3 of design/classification.md). A text past either
// goes to the parser child: even a quadratic flaw that the guard does not know
// stays under half a second of CPU at 16 KiB, and a tree within the bound needs
// less than 0.8 MiB of C stack.
const (
	inProcessBytes = 16 << 10
	inProcessDepth = 1_000
	leastStack     = 2 << 20 // with smaller thread stacks nothing is parsed in process
)

// Limits and defaults of Config.
const (
	defaultSQLBytes = 256 << 10
	largestSQLBytes = 512 << 10
	mostChildren    = 8
	mostCached      = 4096
	longestCached   = 4 << 10 // bytes of a text that may be cached
)

// A Classifier turns statements into classifications. It may be used by many
// goroutines; Close it to end its parser children.
type Classifier struct {
	cfg       Config
	childOnly bool
	state     atomic.Pointer[state]
	parses    *queue[struct{}] // one token for each parse in process
	children  *supervisor

	inProcess atomic.Uint64
	refused   atomic.Uint64
}

// A state is what a classification depends on besides the text. It changes as
// a whole when the server's version becomes known.
type state struct {
	major  int
	tables *tables
	cache  *lru.Cache[string, Classification] // nil: none
}

// ParserStats counts what became of texts since the start.
type ParserStats struct {
	InProcess uint64 `json:"in_process"` // parsed in this process
	Child     uint64 `json:"child"`      // given to a parser child
	Refused   uint64 `json:"refused"`    // refused by the guard, before any parser
	Killed    uint64 `json:"killed"`     // children killed for their CPU or wall time
	Restarts  uint64 `json:"restarts"`   // children started in the place of one that ended
}

// New makes a Classifier and begins to start its parser children. An error
// tells of a setting out of its range or of a build without the parser.
func New(cfg Config) (*Classifier, error) {
	cfg, err := cfg.complete()
	if err != nil {
		return nil, err
	}
	if err := parserLinked(); err != nil {
		return nil, err
	}
	c := &Classifier{
		cfg:       cfg,
		childOnly: cfg.ParserMode == "child" || threadStack() < leastStack,
		parses:    newQueue(make([]struct{}, runtime.GOMAXPROCS(0))...),
	}
	if err := c.SetServerMajor(cfg.ServerMajor); err != nil {
		return nil, err
	}
	if c.children, err = newSupervisor(cfg); err != nil {
		return nil, err
	}
	return c, nil
}

// complete puts in the defaults and checks the ranges.
func (cfg Config) complete() (Config, error) {
	if cfg.MaxSQLBytes == 0 {
		cfg.MaxSQLBytes = defaultSQLBytes
	}
	if cfg.ParserMode == "" {
		cfg.ParserMode = "auto"
	}
	if cfg.Children == 0 {
		cfg.Children = 1
	}
	switch {
	case cfg.MaxSQLBytes < 1 || cfg.MaxSQLBytes > largestSQLBytes:
		return cfg, fmt.Errorf("classify: the largest SQL text is 1 to %d bytes, not %d", largestSQLBytes, cfg.MaxSQLBytes)
	case cfg.ParserMode != "auto" && cfg.ParserMode != "child":
		return cfg, fmt.Errorf("classify: the parser mode is auto or child, not %q", cfg.ParserMode)
	case cfg.Children < 1 || cfg.Children > mostChildren:
		return cfg, fmt.Errorf("classify: there are 1 to %d parser children, not %d", mostChildren, cfg.Children)
	case cfg.CacheEntries < 0 || cfg.CacheEntries > mostCached:
		return cfg, fmt.Errorf("classify: the cache holds 0 to %d classifications, not %d", mostCached, cfg.CacheEntries)
	}
	if cfg.ClientOf == nil {
		cfg.ClientOf = func(context.Context) string { return "" }
	}
	cfg.KeyColumns = slices.Clone(cfg.KeyColumns)
	return cfg, nil
}

// SetServerMajor tells the version of the server that statements will run on
// (15 to 18, 0 = not known), which is known only once a connection is open. It
// holds for every Classify that begins afterwards.
func (c *Classifier) SetServerMajor(major int) error {
	if s := c.state.Load(); s != nil && s.major == major {
		return nil
	}
	s, err := newState(c.cfg, major)
	if err != nil {
		return err
	}
	c.state.Store(s)
	return nil
}

func newState(cfg Config, major int) (*state, error) {
	cfg.ServerMajor = major
	t, err := newTables(cfg)
	if err != nil {
		return nil, err
	}
	s := &state{major: major, tables: t}
	if cfg.CacheEntries > 0 {
		s.cache, err = lru.New[string, Classification](cfg.CacheEntries)
	}
	return s, err
}

// Classify tells what the text's one statement is. The error is a *fault.Fault
// of part 3 of the design with details {position, limit, got, max}, or the
// context's. The classification may be shared with other callers and is never
// to be changed.
func (c *Classifier) Classify(ctx context.Context, sql string) (Classification, error) {
	if err := ctx.Err(); err != nil {
		return Classification{}, err
	}
	st := c.state.Load()
	cached := st.cache != nil && len(sql) <= longestCached
	if cached {
		if known, ok := st.cache.Get(sql); ok {
			return known, nil
		}
	}
	found, err := c.classify(ctx, st, sql)
	if err == nil && cached {
		st.cache.Add(sql, found)
	}
	return found, err
}

// classify lets the guard look and then chooses the lane.
func (c *Classifier) classify(ctx context.Context, st *state, sql string) (Classification, error) {
	s, f := guard(sql, c.cfg.MaxSQLBytes)
	if f != nil {
		c.refused.Add(1)
		return Classification{}, f
	}
	if c.childOnly || max(len(sql), s.Written) > inProcessBytes || s.Depth > inProcessDepth {
		return c.children.classify(ctx, c.cfg.ClientOf(ctx), st.major, sql)
	}
	token, err := c.parses.take(ctx, c.cfg.ClientOf(ctx), maxQueueWait)
	if err != nil {
		return Classification{}, statementFault(err)
	}
	defer c.parses.give(token)
	c.inProcess.Add(1)
	return classifyHere(st.tables, sql, &s)
}

// classifyHere parses and judges a text that the guard let pass, in this
// process. A fault of the walk must not end the process: whatever the text, it
// is refused then.
func classifyHere(t *tables, sql string, s *scan) (c Classification, err error) {
	defer func() {
		switch r := recover().(type) {
		case nil:
		case tooManySteps:
			c, err = Classification{}, fault.New(fault.ParserUnsupportedSyntax, "The statement takes too long to judge: it names too many columns of too many tables. Split it, or name fewer.").
				With("limit", "walk_steps").With("got", r.got).With("max", r.max)
		default:
			c, err = Classification{}, refuseBroken(r)
		}
	}()
	p, f := parseTree(sql)
	if f != nil {
		return Classification{}, f
	}
	defer p.release()
	if c, f = t.facts(p, sql, s); f != nil {
		return Classification{}, f
	}
	c.NormalizedSQL = s.normalized(sql)
	return c, nil
}

func refuseBroken(reason any) *fault.Fault {
	return fault.New(fault.Internal, "The service could not judge the statement, so it is refused. Tell the operator the error_id.").
		Because(fmt.Errorf("classify: %v", reason))
}

// ServerMajor is the major that was told last; 0 = not known.
func (c *Classifier) ServerMajor() int { return c.state.Load().major }

// Keys are the columns that count as keys: id, and those of Config.KeyColumns.
func (c *Classifier) Keys() []string { return append([]string{"id"}, c.cfg.KeyColumns...) }

// Stats gives the counters of GET /runtime/stats.
func (c *Classifier) Stats() ParserStats {
	return ParserStats{
		InProcess: c.inProcess.Load(),
		Child:     c.children.asked.Load(),
		Refused:   c.refused.Load(),
		Killed:    c.children.killed.Load(),
		Restarts:  c.children.restarts.Load(),
	}
}

// Close ends the parser children and waits for them. A Classify that needs one
// afterwards is refused with internal.
func (c *Classifier) Close() { c.children.close() }
