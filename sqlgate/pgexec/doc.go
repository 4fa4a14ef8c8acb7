// Package pgexec runs one statement at a time on the database behind the gate
// and knows, at every step, what a loss would mean. It is the only package that
// talks to the database. It knows no claims and no policy; what it returns to
// clients are faults.
//
// # How statements run
//
// A safe read is one write to a reader connection: BEGIN READ ONLY, the
// statement, ROLLBACK. The database is the second fence behind the classifier;
// what a READ ONLY transaction lets through is undone by the ROLLBACK.
//
// Any other statement runs in a transaction of its own, in three steps with the
// caller's evidence between them:
//
//	W1  Begin   BEGIN; transaction id and settings                nothing of the client's
//	            ... evidence of decision and dispatch is made durable ...
//	W3  Exec    the statement; SET CONSTRAINTS ALL IMMEDIATE;      caps and counts are checked
//	            synchronous_commit as it was
//	W5  Commit  COMMIT, alone
//
// Up to W5 every failure is known to be harmless, because COMMIT was not sent.
// Inside W5 a loss leaves the outcome unknown, and that is what is said. What
// PostgreSQL refuses in a transaction block runs through BeginAlone, and its
// failures may leave something behind.
//
// No statement is ever sent twice. Only W1, which holds nothing of the client's,
// is tried on a second connection.
//
// Several statements of one client share a transaction in a Block. Nothing of
// them is promised before its Commit, and each write in it has evidence of its
// own, made durable between DispatchWrite and Write. A safe read in a block runs
// behind a savepoint under which the transaction is read-only. Every savepoint has a
// name of the gate's own that is used once, so that the server's answer to it
// confirms what the gate takes to be undone.
//
// # What a session is
//
// All that gives a text its meaning (string syntax, search_path, time zone, ...)
// is pinned by startup parameters, which beat settings of roles and databases,
// and proved once per connection, together with the identity of the session and
// of the server's present life (Upstream). A connection on which anything but a safe
// read ran is cleaned as it is given back, and nobody waits for that; one that cannot
// be cleaned is closed. A session whose settings drift all the same is never used
// again.
//
// Statements travel by the extended protocol, under a name that each takes from the
// one before, byte for byte as they were judged: no prefix, no LIMIT, no second command. Connections are logged in
// by pgconn and then taken over (Hijack), since row-limited portals, values as
// they come and cancels of our own alone are needed. Hijack is outside pgx's
// version promise, so a test holds the fields that are used.
//
// # Interface
//
//	Open(Config, *slog.Logger) (*DB, error)
//	(*DB) Status(ctx) Status
//	(*DB) Stats() PoolStats
//	(*DB) ServerMajor() int
//	(*DB) NewRows(limit int64) *Rows
//	(*DB) BeginRead(ctx, *Statement, Limits) (*Reading, error)
//	(*Reading) Dispatch() Dispatch
//	(*Reading) Run(ctx, executionID, Statement, Sink) (Result, error)
//	(*Reading) Release()
//	(*Reading) Describe(ctx, sql, types) (Description, error)
//	(*DB) Begin(ctx, BeginOptions) (*Tx, error)
//	(*Tx) Dispatch() Dispatch
//	(*Tx) Exec(ctx, Statement, Sink) (Result, error)
//	(*Tx) Commit(ctx) (Result, error)
//	(*Tx) Rollback()
//	(*DB) BeginAlone(ctx, BeginOptions) (*Alone, error)
//	(*Alone) Dispatch() Dispatch
//	(*Alone) Exec(ctx, Statement, Sink) (Result, error)
//	(*Alone) Close()
//	(*DB) BeginBlock(ctx, BlockOptions) (*Block, error)
//	(*Block) DispatchRead(BeginOptions) (Dispatch, error)
//	(*Block) DispatchWrite(ctx, BeginOptions) (Dispatch, error)
//	(*Block) Read(ctx, BeginOptions, Statement, Sink) (Result, error)
//	(*Block) Write(ctx, Statement, last, Sink) (Result, error)
//	(*Block) Describe(ctx, sql, types) (Description, error)
//	(*Block) Savepoint(ctx) (Savepoint, error)
//	(*Block) Release, RollbackTo(ctx, Savepoint) error
//	(*Block) Commit(ctx) (Result, error)
//	(*Block) Rollback() (acknowledged bool)
//	(*Block) Status() byte
//	(*Block) Lost() bool
//	(*DB) Setting(ctx, name, value) (shown string, err error)
//	(*DB) Expect(executionID)
//	(*DB) Forget(executionID)
//	(*DB) Cancel(ctx, executionID) CancelState
//	(*DB) CancelAll(ctx) int
//	(*DB) Close()
//
// A Result is complete also beside an error: the error is the fault for the
// client, the Result is for the evidence.
package pgexec
