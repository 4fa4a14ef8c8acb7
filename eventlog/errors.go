package eventlog

import (
	"errors"
)

// Errors of Append. Each is found with errors.Is; the text around it says why.
var (
	// ErrOutcomeUnknown says that the group was handed to the disk and no answer
	// can be trusted: the next start finds it whole or not at all.
	ErrOutcomeUnknown = errors.New("the outcome of the append is unknown")
	// ErrNotWritten says that no byte of the group reached the file.
	ErrNotWritten = errors.New("nothing was written")
	// ErrStorageFull says that the volume has no space; only groups marked
	// Reserve are taken until it has. Nothing of the group was written.
	ErrStorageFull = errors.New("no space left for the log")
	// ErrTooLarge says that a record or a group is over its limit.
	ErrTooLarge = errors.New("too large for the log")
	// ErrClosed says that the log is closed or closing. Nothing was written.
	ErrClosed = errors.New("the log is closed")
	// ErrFenceUnconfirmed says that nobody can tell for the moment whether another copy
	// of the log is written (Options.Fence). Nothing was written.
	ErrFenceUnconfirmed = errors.New("the fence of the log is not confirmed")
	// ErrFenceLost says that another copy of the log goes on, so this one never does.
	// Nothing was written.
	ErrFenceLost = errors.New("the fence of the log is lost")
	// ErrCorrupt says that verification found corruption: the log is up for
	// reading and takes no more commands.
	ErrCorrupt = errors.New("the log is corrupt")
)

// Errors of Open and of readers.
var (
	// ErrLocked says that another process writes this log.
	ErrLocked = errors.New("another process holds the log")
	// ErrUnsafe says that the configuration would make durability or locking a guess.
	ErrUnsafe = errors.New("unsafe place for a log")
	// ErrOtherLog says that the head file or the projections belong to another log.
	ErrOtherLog = errors.New("files of different logs are mixed")
	// ErrTornTail says that the log ends in an unfinished batch and
	// GATE_AUDIT_ON_TORN_TAIL=refuse leaves it to the operator.
	ErrTornTail = errors.New("the log ends in an unfinished batch")
	// ErrUnreadable says that the log could not be judged, so it is not served.
	ErrUnreadable = errors.New("the log could not be read in full")
	// ErrNotFound says that no durable event has this sequence number.
	ErrNotFound = errors.New("no such event")
	// ErrInvalidOptions says that a setting is out of its values.
	ErrInvalidOptions = errors.New("invalid option of the log")
)

// Exit codes of the process (design/eventlog.md part 6, after sysexits.h).
const (
	ExitPoisoned = 70 // the log can't be trusted to take one more byte
	ExitLocked   = 75 // another process holds the log
	ExitUnsafe   = 78 // unsafe or contradictory configuration
)

// ExitCode gives the process's exit code for an error of Open or of Fatal.
func ExitCode(err error) int {
	switch {
	case err == nil:
		return 0
	case errors.Is(err, ErrLocked):
		return ExitLocked
	case errors.Is(err, ErrUnsafe), errors.Is(err, ErrOtherLog), errors.Is(err, ErrInvalidOptions):
		return ExitUnsafe
	}
	return ExitPoisoned
}
