//go:build !race

package classify

const raceDetector = false
