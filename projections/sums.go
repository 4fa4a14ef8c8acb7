package projections

import "math"

// sum adds two numbers from 0. What is more than the greatest number is that one: a
// sum that wrapped below 0 would pass every limit.
func sum(a, b int64) int64 {
	if b > math.MaxInt64-a {
		return math.MaxInt64
	}
	return a + b
}

// plus adds each number.
func plus(into, from []*int64) {
	for i, n := range from {
		*into[i] = sum(*into[i], *n)
	}
}
