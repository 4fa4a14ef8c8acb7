package projections

import (
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
	h.Sum += ms
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
	h.Sum += o.Sum
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
		h.plusKept(c)
		return
	}
	number(c, &h.Count)
	number(c, &h.Sum)
	number(c, &h.Max)
	full := 0
	for _, n := range h.buckets {
		if n != 0 {
			full++
		}
	}
	number(c, &full)
	before := 0
	for i, n := range h.buckets {
		if n != 0 {
			gap := i - before
			number(c, &gap)
			number(c, &n)
			before = i
		}
	}
}

// plusKept adds what walk wrote.
func (h *Histogram) plusKept(c *codec) {
	h.Count += int64(c.uvarint())
	h.Sum += int64(c.uvarint())
	h.Max = max(h.Max, int64(c.uvarint()))
	at := uint64(0)
	for range c.length(0) {
		at += c.uvarint()
		n := c.uvarint()
		if at >= maxBuckets {
			c.fail()
			return
		}
		h.reach(int(at) + 1)
		h.buckets[at] += int64(n)
	}
}
