package pgwire

import (
	"context"
	"time"

	"writegate/sqlgate"
	"writegate/sqlgate/pgexec"
)

// A Wire is what stands behind one connection: *sqlgate.Wire. It decides, runs
// and leaves evidence; it is called by the connection's goroutine alone, but for
// Cancel. Its errors are a *sqlgate.WireRefusal, a *sqlgate.WireError or a
// *fault.Fault.
type Wire interface {
	// Parameters are the ParameterStatus of the session that depend on its
	// settings, as they are now.
	Parameters() [][2]string
	// Changed are those of them that the client was not told since the last time.
	Changed() [][2]string

	Query(ctx context.Context, sql string, out sqlgate.WireSink) (sqlgate.WireDone, error)
	Parse(ctx context.Context, name, sql string, types []uint32) error
	Bind(portal, statement string, paramFormats []int16, params [][]byte, resultFormats []int16) error
	DescribeStatement(ctx context.Context, name string) (params []uint32, fields []pgexec.Field, err error)
	DescribePortal(ctx context.Context, portal string) ([]pgexec.Field, error)
	// Execute runs a portal; last says that the next message is a Sync that has
	// arrived already.
	Execute(ctx context.Context, portal string, maxRows uint32, last bool, out sqlgate.WireSink) (sqlgate.WireDone, error)
	CloseStatement(name string)
	ClosePortal(name string)
	Sync(ctx context.Context) error

	// Fail tells it of an error that the listener answered: as after a statement
	// that failed.
	Fail(ctx context.Context)
	Status() byte

	// Unread tells how many bytes of answers wait for the client to read them. An error
	// says that there is no room for them.
	Unread(bytes int64) error

	// Waited is how long statements waited for a person since the last time.
	Waited() time.Duration

	// Unwritten reports whether evidence waits for the next append, and
	// WriteEvidence writes it.
	Unwritten() bool
	WriteEvidence(ctx context.Context)

	// Runs reports whether there is something for Cancel. Both may be called by any
	// goroutine.
	Runs() bool
	Cancel(ctx context.Context) sqlgate.WireCancel
	// Close ends what is open: the client is gone.
	Close(ctx context.Context)
}
