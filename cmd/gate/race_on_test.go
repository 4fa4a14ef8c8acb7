//go:build race

package main

// raceDetector: its bookkeeping takes more CPU time than a text may.
const raceDetector = true
