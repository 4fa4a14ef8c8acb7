package projections

import (
	"math/bits"
	"slices"
)

// A Histogram counts durations in milliseconds in fixed log-linear buckets: one
// for each value up to 127, and from there 64 for each doubling, so that a bucket
// is never wider than a 64th of what it holds. The buckets are the same for all
// time: histograms add up exactly, in any order. The form is that of
// HdrHistogram (https://hdrhistogram.org), of which only the buckets that are
// not empty are kept.
type Histogram struct {
	Count, Sum, Max int64
	buckets         []bucket // ascending
}

type bucket struct {
	index int
	count int64
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
	h.count(bucketOf(ms), 1)
}

func (h *Histogram) count(index int, n int64) {
	i, found := slices.BinarySearchFunc(h.buckets, index, func(b bucket, to int) int { return b.index - to })
	if !found {
		h.buckets = slices.Insert(h.buckets, i, bucket{index: index})
	}
	h.buckets[i].count += n
}

// Plus adds what another one counted.
func (h *Histogram) Plus(o *Histogram) {
	h.Count += o.Count
	h.Sum += o.Sum
	h.Max = max(h.Max, o.Max)
	for _, b := range o.buckets {
		h.count(b.index, b.count)
	}
}

// Percentile is the duration that at least permille of a thousand do not pass,
// to the top of its bucket and never more than Max; 0 where nothing was counted.
func (h *Histogram) Percentile(permille int64) int64 {
	rank := (h.Count*permille + 999) / 1000
	for _, b := range h.buckets {
		if rank -= b.count; rank <= 0 {
			return min(topOf(b.index), h.Max)
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

func (h *Histogram) walk(c *codec) {
	number(c, &h.Count)
	number(c, &h.Sum)
	number(c, &h.Max)
	n := c.length(len(h.buckets))
	if c.reading {
		h.buckets = slices.Grow(h.buckets[:0], n)[:n]
	}
	before := 0
	for i := range h.buckets {
		b := &h.buckets[i]
		gap := b.index - before
		number(c, &gap)
		number(c, &b.count)
		if b.index = before + gap; b.index < 0 || b.index >= maxBuckets {
			c.fail()
			return
		}
		before = b.index
	}
}
