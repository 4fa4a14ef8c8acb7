package projections

import (
	"cmp"
	"encoding/binary"
	"math/bits"
	"slices"
)

// A Histogram counts durations in milliseconds in fixed log-linear buckets: one
// for each value up to 127, and from there 64 for each doubling, so that a bucket
// is never wider than a 64th of what it holds. The buckets are the same for all
// time: histograms add up exactly, in any order. The form is that of
// HdrHistogram (https://hdrhistogram.org). In memory it has every bucket up to
// the highest that was met, so that adding is one step; kept are those that are
// not empty.
type Histogram struct {
	Count, Sum, Max int64
	buckets         []int64 // up to the highest that was met
}

const (
	exactBits  = 7 // values below 1<<exactBits have a bucket of their own
	exact      = 1 << exactBits
	perOctave  = exact / 2
	maxBuckets = exact + (63-exactBits)*perOctave
)

// bucketOf gives the bucket of a duration from 0.
func bucketOf(ms int64) int {
	if ms < exact {
		return int(ms)
	}
	shift := bits.Len64(uint64(ms)) - exactBits
	return exact + (shift-1)*perOctave + int(ms>>shift) - perOctave
}

// topOf is the greatest duration in a bucket.
func topOf(index int) int64 {
	if index < exact {
		return int64(index)
	}
	shift := (index-exact)/perOctave + 1
	low := int64((index-exact)%perOctave + perOctave)
	return (low+1)<<shift - 1
}

// Add counts one duration; one below 0 counts as 0.
func (h *Histogram) Add(ms int64) {
	ms = max(ms, 0)
	h.Count++
	h.Sum = sum(h.Sum, ms)
	h.Max = max(h.Max, ms)
	index := bucketOf(ms)
	h.reach(index + 1)
	h.buckets[index]++
}

// reach makes room for n buckets.
func (h *Histogram) reach(n int) {
	if have := len(h.buckets); n > have {
		h.buckets = slices.Grow(h.buckets, n-have)[:n]
		clear(h.buckets[have:])
	}
}

// Plus adds what another one counted.
func (h *Histogram) Plus(o *Histogram) {
	h.Count += o.Count
	h.Sum = sum(h.Sum, o.Sum)
	h.Max = max(h.Max, o.Max)
	h.reach(len(o.buckets))
	for i, n := range o.buckets {
		h.buckets[i] += n
	}
}

// reset empties it and keeps its room.
func (h *Histogram) reset() { *h = Histogram{buckets: h.buckets[:0]} }

// Percentile is the duration that at least permille of a thousand do not pass,
// to the top of its bucket and never more than Max; 0 where nothing was counted.
func (h *Histogram) Percentile(permille int64) int64 {
	rank := (h.Count*permille + 999) / 1000
	for i, n := range h.buckets {
		if rank -= n; rank <= 0 {
			return min(topOf(i), h.Max)
		}
	}
	return h.Max
}

// Average is the mean, rounded down; 0 where nothing was counted.
func (h *Histogram) Average() int64 {
	if h.Count == 0 {
		return 0
	}
	return h.Sum / h.Count
}

// walk keeps the buckets that are not empty, each by its distance to the one
// before. What is read is added to what is there.
func (h *Histogram) walk(c *codec) {
	if c.reading {
		walkKept(c, &h.Count, &h.Sum, &h.Max, func(at int, n int64) {
			h.reach(at + 1)
			h.buckets[at] += n
		})
		return
	}
	few := fewDurations{count: h.Count, sum: h.Sum, max: h.Max}
	for i, n := range h.buckets {
		if n != 0 {
			few.buckets = append(few.buckets, bucketCount{int32(i), n})
		}
	}
	few.walk(c)
}

// walkKept adds what a kept histogram counted, and hands its buckets to take.
func walkKept(c *codec, count, total, most *int64, take func(at int, n int64)) {
	*count += int64(c.uvarint())
	*total = sum(*total, int64(c.uvarint()))
	*most = max(*most, int64(c.uvarint()))
	at := uint64(0)
	for range c.length(0) {
		gap := c.uvarint()
		n := c.uvarint()
		if gap >= maxBuckets || at+gap >= maxBuckets {
			c.fail()
			return
		}
		at += gap
		take(int(at), int64(n))
	}
}

// fewDurations are a Histogram of the buckets that are not empty alone, in their
// order: what a fold adds to is thousands of buckets of metrics, of which each has few durations.
type fewDurations struct {
	count, sum, max int64
	buckets         []bucketCount
}

type bucketCount struct {
	at int32
	n  int64
}

func (f *fewDurations) add(ms int64) {
	ms = max(ms, 0)
	f.count++
	f.sum = sum(f.sum, ms)
	f.max = max(f.max, ms)
	f.into(bucketOf(ms), 1)
}

func (f *fewDurations) plus(o *fewDurations) {
	f.count += o.count
	f.sum = sum(f.sum, o.sum)
	f.max = max(f.max, o.max)
	for _, b := range o.buckets {
		f.into(int(b.at), b.n)
	}
}

func (f *fewDurations) into(at int, n int64) {
	i, found := slices.BinarySearchFunc(f.buckets, int32(at), func(b bucketCount, at int32) int { return cmp.Compare(b.at, at) })
	if !found {
		f.buckets = slices.Insert(f.buckets, i, bucketCount{at: int32(at)})
	}
	f.buckets[i].n += n
}

// walk is that of a Histogram.
func (f *fewDurations) walk(c *codec) {
	if c.reading {
		walkKept(c, &f.count, &f.sum, &f.max, f.into)
		return
	}
	number(c, &f.count)
	number(c, &f.sum)
	number(c, &f.max)
	full := len(f.buckets)
	number(c, &full)
	before := int32(0)
	for _, b := range f.buckets {
		gap := b.at - before
		c.buf = binary.AppendUvarint(c.buf, uint64(gap))
		number(c, &b.n)
		before = b.at
	}
}
