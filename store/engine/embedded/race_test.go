//go:build race

package embedded_test

// The race detector makes everything several times slower; it sees the same
// code in a sample of the cases.
const raceDetector = true
