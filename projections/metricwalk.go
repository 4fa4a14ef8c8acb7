package projections

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"time"
)

// A MetricFilter selects buckets of a project.
type MetricFilter struct {
	Project   string
	AgentID   string        // "" = all together, or each
	EachAgent bool          // without AgentID: the buckets of each agent
	Type      string        // "" = all
	From, To  time.Time     // starts of buckets: from From on, before To
	Level     time.Duration // one of MetricLevels
}

// A MetricDim is one of what metrics are told apart by.
type MetricDim int

// The dimensions, in the order of MetricDims.
const (
	MetricAgent MetricDim = iota
	MetricType
	MetricModel
	MetricTool
	MetricEnvironment
	metricDims
)

// A MetricBucket is a kept bucket as a walk meets it. Most answers are sums of
// very many of them, so it is not unpacked: it is the walk's until take returns.
type MetricBucket struct {
	Start int64              // s since 1970
	Dims  [metricDims][]byte // by MetricDim
	sums  []byte
	store *Store
}

// AddTo adds the bucket's figures to sums.
func (b *MetricBucket) AddTo(sums *MetricSums) error {
	if err := unmarshal(b.sums, sums); err != nil {
		return b.store.damaged(fmt.Errorf("metrics of %q at %d: %w", b.Dims, b.Start, err))
	}
	return nil
}

// read takes a key apart, from the start of the bucket on.
func (b *MetricBucket) read(rest []byte) error {
	c := codec{reading: true, buf: rest}
	if start := c.take(8); start != nil {
		b.Start = int64(binary.BigEndian.Uint64(start))
	}
	for i := range b.Dims {
		b.Dims[i] = c.take(c.uvarint())
	}
	if c.err == nil && len(c.buf) > 0 {
		c.fail()
	}
	return c.err
}

// Metrics hands every bucket that a filter selects to take, the oldest first.
func (v *View) Metrics(f MetricFilter, take func(*MetricBucket) error) error {
	prefix, agent := metricPrefix(f.Level, f.Project), appendSized(nil, f.AgentID)
	it, err := v.iter(metricStart(prefix, f.From.Unix()), metricStart(prefix, f.To.Unix()))
	if err != nil {
		return err
	}
	b := MetricBucket{store: v.store}
	for ok := it.First(); ok && err == nil; {
		rest := it.Key()[1+len(prefix):]
		if bad := b.read(rest); bad != nil {
			err = v.store.damaged(fmt.Errorf("%q: %w", it.Key(), bad))
			break
		}
		if to := f.leap(prefix, &b, rest[8:], agent); to != nil {
			ok = it.SeekGE(physical(v.space, to))
			continue
		}
		if f.Type == "" || f.Type == string(b.Dims[MetricType]) {
			if b.sums, err = it.ValueAndErr(); err == nil {
				err = take(&b)
			}
		}
		ok = it.Next()
	}
	return v.closeIter(it, err)
}

// metricStart is where the buckets of one start begin.
func metricStart(prefix []byte, start int64) []byte {
	return binary.BigEndian.AppendUint64(append([]byte(nil), prefix...), uint64(max(0, start)))
}

// leap gives the key to go on at where a bucket is not of the filter's agents,
// which are sorted within a start: all of them together first. nil = it is.
func (f *MetricFilter) leap(prefix []byte, b *MetricBucket, at, agent []byte) []byte {
	start := b.Start
	switch {
	case f.EachAgent && f.AgentID == "":
		if len(b.Dims[MetricAgent]) > 0 {
			return nil
		}
		return append(metricStart(prefix, start), 1) // behind all whose agent has the length 0
	case bytes.HasPrefix(at, agent):
		return nil
	case bytes.Compare(at, agent) > 0:
		start += int64(f.Level / time.Second)
	}
	return append(metricStart(prefix, start), agent...)
}
