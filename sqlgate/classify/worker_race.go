//go:build race

package classify

// raceDetector: its shadow memory needs more address space than a child may have.
const raceDetector = true
