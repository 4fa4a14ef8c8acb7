package projections

import (
	"testing"
	"time"

	"writegate/eventlog/event"
)

// Replace gives an event type another projector for the time of a test. set
// writes a record of its own.
func Replace(t *testing.T, typ event.Type, apply func(e *event.Envelope, set func(key, value string))) {
	before := projectors[typ]
	t.Cleanup(func() { projectors[typ] = before })
	projectors[typ] = projector{before.version, func(t *tx, e *event.Envelope) error {
		apply(e, func(key, value string) { t.set([]byte(key), []byte(value)) })
		return nil
	}}
}

// Replay sets how a replay cuts its work: events of a batch, bytes of a load, and
// of one that becomes tables.
func (s *Store) Replay(events, load, tables int) { s.limits = limits{events, load, tables} }

// WritingEnd sets how long Close waits for the volume, for the time of a test.
func WritingEnd(t *testing.T, d time.Duration) {
	before := writingEnd
	t.Cleanup(func() { writingEnd = before })
	writingEnd = d
}

// SlowWrites sets how long the store waits for its volume before that is called full, for
// the time of a test.
func SlowWrites(t *testing.T, d time.Duration) {
	before := slowWrites
	t.Cleanup(func() { slowWrites = before })
	slowWrites = d
}

// OpeningTakes sets how long an opening waits for a volume that takes nothing, for the time
// of a test.
func OpeningTakes(t *testing.T, d time.Duration) {
	before := openingTakes
	t.Cleanup(func() { openingTakes = before })
	openingTakes = d
}

// TryAgain sets the least time between two tries at a table, for the time of a test.
func TryAgain(t *testing.T, d time.Duration) {
	before := tryAgain
	t.Cleanup(func() { tryAgain = before })
	tryAgain = d
}
