package pgexec

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"writegate/commands/fault"
)

// unavailableClass reports errors of a server that works but cannot serve now:
// shutting down or starting (57P01 to 57P05), out of resources (53xxx), or too slow to
// answer what a new connection asks (57014).
func unavailableClass(code string) bool {
	return strings.HasPrefix(code, "57P") || strings.HasPrefix(code, "53") || code == "57014"
}

// connectFault tells a client why no connection could be had, in words that
// name no host and no role; the cause goes to the log.
func connectFault(err error) error {
	if _, ok := fault.As(err); ok {
		return err
	}
	var e *pgconn.PgError
	switch {
	case errors.Is(err, pgconn.ErrReadOnlyConnection):
		return fault.New(fault.DBUnavailable, "The database takes no writes: it is a standby or read-only. Send the request again later.").Because(err)
	case errors.As(err, &e) && unavailableClass(e.Code):
		return fault.New(fault.DBUnavailable, "The database does not take connections now. Send the request again later.").
			With("sqlstate", e.Code).Because(err)
	case errors.As(err, &e):
		return fault.New(fault.DBConnectionFailed, "The database refused the gate's login, so nothing was executed. Tell the operator: name, password and database in GATE_DATABASE_URL must be those of the server.").
			With("sqlstate", e.Code).Because(err)
	case errors.Is(err, context.Canceled):
		return fault.New(fault.DBUnavailable, "The request ended before the database answered. Send it again.").Because(err)
	}
	return fault.New(fault.DBConnectionFailed, "The database cannot be reached, or refused the connection. Nothing was executed; send the request again later, and tell the operator if it stays.").Because(err)
}

// overtime reports that the server ended a connection whose transaction was open, or
// silent, for longer than it may be. Of a block that is what its client did, and no
// trouble of the server.
func overtime(e *pgconn.PgError) bool {
	return e != nil && (e.Code == "25P03" || e.Code == "25P04") && e.SeverityUnlocalized != "ERROR"
}

// stateOvertime is idle_in_transaction_session_timeout, which clients know from all
// versions of the server.
const stateOvertime = "25P03"

func overtimeFault() *fault.Fault {
	return fault.New(fault.DBQueryFailed, "The transaction was open for longer than it may be, so it was rolled back. Nothing of it was applied; send it again in less time.").
		With("sqlstate", stateOvertime).With("retryable", false)
}

// lostFault is the fault of a connection that broke before COMMIT was sent.
func lostFault(e *pgconn.PgError, err error) *fault.Fault {
	f := fault.New(fault.DBConnectionFailed, "The connection to the database was lost while the statement ran. It was not applied; send it again.")
	if e != nil {
		f = f.With("sqlstate", e.Code)
	}
	return f.Because(err)
}

func timeoutFault() *fault.Fault {
	return fault.New(fault.DBQueryTimeout, "The statement took longer than the gate allows. Do not send it again before you have looked at the state of the data.")
}

// unknownFault is the contract's 504 where it is not known what was applied.
func unknownFault(what string) *fault.Fault {
	return fault.New(fault.DBQueryTimeout, "%s: whether the statement was applied is not known. Do not send it again before you have looked at the state of the data.", what)
}

func tooLargeFault() *fault.Fault {
	return fault.New(fault.ResultTooLarge, "The result is larger than the gate hands on; nothing was applied. Ask for fewer rows or columns.")
}

func cancelledFault() *fault.Fault {
	return fault.New(fault.DBQueryFailed, "The statement was cancelled; nothing was applied. Send it again if it is still wanted.").With("sqlstate", "57014").With("reason", ReasonCancelled)
}

func driftFault(setting string) *fault.Fault {
	return fault.New(fault.DBUnavailable, "The database session changed a setting that the gate pins (%s). Nothing was applied; find out what changes it before you send the statement again.", setting).
		With("reason", ReasonSettingsDrift)
}

func catalogFault() *fault.Fault {
	return fault.New(fault.DBQueryFailed, "What stands in the database behind the names in the statement was changed after the statement had been judged. Nothing was applied; send it again, under a new idempotency key where it has one, and it is judged as it is now. Where its own transaction made the change, COMMIT that first.").
		With("sqlstate", "40001").With("reason", ReasonCatalogChanged).With("retryable", true)
}

// lostCode reports errors after which the server closes the connection, or has
// given up the transaction while it waited for us.
func lostCode(code string) bool {
	return strings.HasPrefix(code, "57P0") || strings.HasPrefix(code, "08") || code == "25P03" || code == "25P04"
}

// raised reports an error of PL/pgSQL's RAISE: its code is the word of whoever wrote
// the function, and tells nothing of the server, of its time limits or of the fence.
func raised(e *pgconn.PgError) bool { return e.Routine == "exec_stmt_raise" }

// storage are PostgreSQL's source files that read and write its own: what they could not
// do has XX000 where the system says why in a way that has no SQLSTATE, as of a file that
// may not grow.
var storage = []string{"md.c", "fd.c", "smgr.c", "bufmgr.c", "buffile.c", "slru.c", "xlog.c", "xlogutils.c", "relmapper.c"}

// serverTrouble reports errors that are not the statement's fault. An internal error
// (XX000) is: the server has it for much that any client can ask for, such as a number
// that is no object's class, and is as well as ever; and so are a limit that the
// operator set (53400), memory that a process did not get (53200), and what a foreign table meets at its own server or file.
func serverTrouble(e *pgconn.PgError) bool {
	switch code := e.Code; {
	case raised(e), code == "53400", code == "53200", e.Routine == "pgfdw_report_error", e.File == "copyfrom.c", e.File == "copyfromparse.c":
		return false
	case code == "XX001", code == "XX002": // data or an index is damaged
		return true
	case code == "XX000":
		return slices.Contains(storage, e.File)
	default:
		return strings.HasPrefix(code, "53") || strings.HasPrefix(code, "58") || code == "25006"
	}
}

// Retryable reports whether a SQLSTATE says that another statement was in the way, and
// nothing of this one was applied: what drivers and ORMs send again by themselves.
func Retryable(code string) bool {
	return code == "40001" || code == "40P01" || code == "55P03"
}

// statementFault is the fault for an ErrorResponse to a client's statement.
func (cfg *Config) statementFault(e *pgconn.PgError) *fault.Fault {
	switch {
	case e.Code == "57014" && !raised(e):
		return timeoutFault().With("sqlstate", e.Code)
	case lostCode(e.Code) && e.SeverityUnlocalized != "ERROR": // an ERROR of these is another server's, behind a foreign table, or raised
		return lostFault(e, quiet{e})
	case serverTrouble(e):
		return fault.New(fault.DBUnavailable, "The database could not run the statement: %s. Send it again later, and tell the operator if it stays.", clip(e.Message)).
			Logged("The database could not run the statement.").With("sqlstate", e.Code).Because(quiet{e})
	}
	return cfg.refusedFault(e)
}

// A quiet error is the server's of a client's statement as the operational log may
// have it: the server quotes values of rows and of the text, of any length.
type quiet struct{ *pgconn.PgError }

// Error is the SQLSTATE, and the names of what is in the way.
func (q quiet) Error() string {
	text := "SQLSTATE " + q.Code
	for _, n := range []struct{ what, name string }{{"table", q.TableName}, {"column", q.ColumnName}, {"constraint", q.ConstraintName}} {
		if n.name != "" {
			text += ", " + n.what + " " + clip(n.name)
		}
	}
	return text
}

// Unwrap gives the server's error.
func (q quiet) Unwrap() error { return q.PgError }

// AdviceRetry ends the message of a refusal that is Retryable.
const AdviceRetry = "Another statement was in its way: send it again, with a new idempotency key or approval where it had one."

const partitionedHint = "The gate runs it in a transaction. Of a partitioned table or index REINDEX it CONCURRENTLY, or name its partitions one by one."

// refusedFault hands the server's refusal on: its message and hint as they are,
// DETAIL and CONTEXT only where the operator allowed it.
func (cfg *Config) refusedFault(e *pgconn.PgError) *fault.Fault {
	advice := "Correct it and send it again."
	switch {
	case e.Routine == "PreventInTransactionBlock" && e.Hint == "": // no text tells what is partitioned
		advice = partitionedHint
		hinted := *e
		hinted.Hint = advice
		e = &hinted
	case Retryable(e.Code):
		advice = AdviceRetry
	}
	f := fault.New(fault.DBQueryFailed, "The database refused the statement: %s. %s", clip(e.Message), advice).
		Logged("The database refused the statement.").With("sqlstate", e.Code).With("retryable", Retryable(e.Code)).Because(quiet{e})
	if e.Position > 0 {
		f = f.With("position", int64(e.Position))
	}
	texts := []struct{ key, value string }{
		{"hint", e.Hint}, {"constraint", e.ConstraintName}, {"table", e.TableName}, {"column", e.ColumnName},
	}
	if cfg.ErrorDetail {
		texts = append(texts, []struct{ key, value string }{{"detail", e.Detail}, {"context", e.Where}}...)
	}
	for _, t := range texts {
		if t.value != "" {
			f = f.With(t.key, clip(t.value))
		}
	}
	return f
}

// A ServerError is what the server said of a statement that it refused, without
// what may carry values of rows: that is in the fault's details where the operator
// lets it through.
type ServerError struct {
	Message, Hint                               string
	Schema, Table, Column, DataType, Constraint string
}

// ServerErrorOf finds what the server said behind a fault.
func ServerErrorOf(err error) (ServerError, bool) {
	var e *pgconn.PgError
	if !errors.As(err, &e) {
		return ServerError{}, false
	}
	return ServerError{
		Message: clip(e.Message), Hint: clip(e.Hint),
		Schema: e.SchemaName, Table: e.TableName, Column: e.ColumnName, DataType: e.DataTypeName, Constraint: e.ConstraintName,
	}, true
}

// overCap reports whether a conversation ended because the result is too large,
// by the sum of its values or by one message.
func overCap(err error) bool {
	var tooLong *pgproto3.ExceededMaxBodyLenErr
	return errors.Is(err, errOverCap) || errors.As(err, &tooLong)
}
