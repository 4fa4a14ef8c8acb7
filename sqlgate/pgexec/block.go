package pgexec

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"writegate/commands/fault"
)

// BlockOptions say how a transaction of several statements begins.
type BlockOptions struct {
	Isolation   string // as in BEGIN ISOLATION LEVEL, in small letters; "" = read committed, as pinned
	ReadOnly    bool
	Deferrable  bool
	DDL         bool          // the role for classes ddl, dcl and maintenance; a block has one role
	Timeout     time.Duration // how long it may last (from PostgreSQL 17 on the server sees to it too); 0 = as pinned
	IdleTimeout time.Duration // how long it may wait for the next statement; 0 = as pinned
}

// A Block is one transaction of several statements on one writer connection. It
// is used by one goroutine; what runs in it can be cancelled by DB.Cancel.
//
// After an error the block has failed, as in PostgreSQL: only RollbackTo and
// Rollback go on. It has failed as well where only the gate saw the error (a cap,
// a count). Where the server is not in the state in which the gate takes it to be,
// the block is lost. One of Commit and Rollback must be called, also after the
// connection was lost.
type Block struct {
	db    *DB
	lease *lease
	opts  BlockOptions

	own       map[string]string // set for the whole transaction
	names     string            // how the names of its savepoints begin
	named     int               // how many there were
	xid       uint64            // 0: no write was dispatched yet
	next      *BeginOptions     // of the write that was dispatched and not yet sent
	counted   rowCounts         // before it
	limited   []limitedRows     // each write so far under a limit: deferred triggers may change more rows
	held      []string          // relations that reads have locked, as their facts name them
	settings  map[string]string // of the last write, for the checks that are deferred to the end
	unchecked bool              // a write ran behind which deferred checks were not made yet
	ddl       bool              // a statement of class ddl, dcl or maintenance ran
	temporary bool              // there was something temporary behind a write

	over   bool // the server ended it for its time
	failed bool
	lost   bool // the connection is gone; the server rolls back, or has
	ended  bool
}

var (
	errBlockLost = errors.New("the connection of the transaction was lost before")
	errOutOfStep = errors.New("the server does not know a savepoint that it has set")
)

// isolations are the names that BEGIN takes.
var isolations = []string{"", "read uncommitted", "read committed", "repeatable read", "serializable"}

// beginSQL is our own text for a BEGIN, whatever the client wrote.
func (o BlockOptions) beginSQL() string {
	begin := "BEGIN"
	if o.Isolation != "" {
		begin += " ISOLATION LEVEL " + strings.ToUpper(o.Isolation)
	}
	if o.ReadOnly {
		begin += " READ ONLY"
	}
	if o.Deferrable {
		begin += " DEFERRABLE"
	}
	return begin
}

// BeginBlock leases a writer and opens the transaction: a look at the settings,
// BEGIN, in one round trip and with nothing of the client's. No
// snapshot is taken yet and no transaction id. A connection that fails in it is
// replaced once.
func (db *DB) BeginBlock(ctx context.Context, opts BlockOptions) (*Block, error) {
	if !slices.Contains(isolations, opts.Isolation) {
		return nil, fault.New(fault.Internal, "The transaction's isolation level is not known.").With("isolation", opts.Isolation)
	}
	b := &Block{db: db, opts: opts}
	err := db.writerFor(opts.DDL).onWriter(ctx, (*conn).reset, func(l *lease) error {
		b.lease, l.block = l, true
		return b.open(ctx)
	})
	if err != nil {
		return nil, err
	}
	return b, nil
}

// open looks at the settings before BEGIN, so that the snapshot of a repeatable
// transaction is that of its first statement.
func (b *Block) open(ctx context.Context) error {
	l := b.lease
	b.own = b.timeouts()
	look, shown, seen := l.opening(false)
	begin := append(segment{own(b.opts.beginSQL())}, set("LOCAL", b.own)...)
	refused, err := l.exchange(ctx, time.Now().Add(b.db.cfg.ConnectTimeout), segment{look}, begin)
	if err == nil && len(shown.values) > 0 && !seen() {
		return errNotClean
	}
	if err != nil || refused != nil {
		return &beginError{beginFault(refused, err)}
	}
	if l.compare(shown.text(lookSettings)); l.drift != "" {
		return &beginError{driftFault(l.drift)}
	}
	return nil
}

// timeouts are those of the whole transaction.
func (b *Block) timeouts() map[string]string {
	s := map[string]string{}
	if b.opts.IdleTimeout > 0 {
		s["idle_in_transaction_session_timeout"] = millis(b.opts.IdleTimeout)
	}
	if b.opts.Timeout > 0 && b.lease.major >= 17 {
		s["transaction_timeout"] = millis(b.opts.Timeout)
	}
	return s
}

// Status is I after the block has ended, E after it has failed, else T.
func (b *Block) Status() byte {
	switch {
	case b.ended:
		return 'I'
	case b.failed:
		return 'E'
	}
	return 'T'
}

// Lost reports whether the connection is gone before COMMIT was sent: nothing
// of the block can be applied, and only Rollback goes on.
func (b *Block) Lost() bool { return b.lost }

// end gives the connection back. What comes later finds a block that has ended.
func (b *Block) end() {
	if !b.ended && !b.lost {
		b.lease.release()
	}
	b.ended = true
}

// broke notes that the conversation broke off.
func (b *Block) broke() {
	b.db.endOrphan(b.lease)
	b.lose()
}

// brokeOff is broke for a conversation of our own. The other connections of the pool
// are doubted with it, unless the server ended this one for its time.
func (b *Block) brokeOff(refused *pgconn.PgError, err error) {
	if b.over = overtime(lastError(refused, err)); !b.over {
		b.lease.pool.lost()
	}
	b.broke()
}

// gone is the fault of what comes after the connection was lost.
func (b *Block) gone() *fault.Fault {
	if b.over {
		return overtimeFault()
	}
	return lostFault(nil, errBlockLost)
}

// lose gives the connection up at once: a client may take long to say ROLLBACK.
func (b *Block) lose() {
	b.failed, b.lost = true, true
	b.lease.release()
}

// usable says whether the block goes on with a statement.
func (b *Block) usable() error {
	switch {
	case b.lost:
		return b.gone()
	case b.ended || b.failed || b.next != nil:
		return fault.New(fault.Internal, "The transaction takes no statement now.")
	}
	return nil
}
