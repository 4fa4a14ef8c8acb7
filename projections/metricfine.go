package projections

import (
	"bytes"
	"time"
)

// FineLifetime is how long buckets of less than an hour are kept, by the times
// of the project's own events; whole days go at once.
const FineLifetime = 35 * 24 * time.Hour

func fine(level time.Duration) bool { return level < time.Hour }

// A fineFrom is the first start of which a project still has fine buckets.
type fineFrom struct{ start int64 } // s since 1970

func (f *fineFrom) walk(c *codec) { number(c, &f.start) }

func fineKey(project string) []byte { return append([]byte(keyFine), project...) }

// forgetFine drops the fine buckets that are too old at now, and gives the first
// start that is kept. What is dropped once is never added to again, also where
// clocks run back: so it does not show in which batch it went.
func (t *tx) forgetFine(project string, now time.Time) (from int64) {
	var kept fineFrom
	t.get(fineKey(project), &kept)
	oldest := startOf(now.Add(-FineLifetime).UnixNano(), 24*time.Hour)
	if oldest <= kept.start {
		return kept.start
	}
	t.put(fineKey(project), &fineFrom{oldest})
	for _, level := range MetricLevels {
		if fine(level) {
			prefix := metricPrefix(level, project)
			t.deleteRange(metricStart(prefix, 0), metricStart(prefix, oldest))
		}
	}
	return oldest
}

// deleteRange takes back all keys from begin on and before end, those of this
// batch as well. Nothing may be read or written there again.
func (t *tx) deleteRange(begin, end []byte) {
	for key := range t.changes {
		if k := []byte(key); bytes.Compare(k, begin) >= 0 && bytes.Compare(k, end) < 0 {
			t.delete(k)
		}
	}
	if t.load != nil {
		t.load.drop(t.space.id, begin, end)
		return
	}
	if err := t.batch.DeleteRange(physical(t.space.id, begin), physical(t.space.id, end), nil); err != nil {
		t.fail(err)
	}
}

// FineFrom is from when on a project has buckets of less than an hour; the zero
// time where none was dropped yet.
func (v *View) FineFrom(project string) (from time.Time, err error) {
	var kept fineFrom
	known, err := v.read(fineKey(project), &kept)
	if known {
		from = time.Unix(kept.start, 0).UTC()
	}
	return from, err
}
