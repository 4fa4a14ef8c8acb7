package policy

import (
	_ "embed"
	"sync"
)

//go:embed documents/baseline.yaml
var baselineDocument []byte

var baseline = sync.OnceValue(func() []Case {
	cases, _ := ParseCorpus(baselineDocument)
	return cases
})

// Baseline is the corpus that always runs first: statements that raise a floor
// signal, none of which may be ALLOW for a client without any proof of itself.
// Its hash is that of its bytes.
func Baseline() (cases []Case, hash string) {
	return baseline(), Digest(baselineDocument)
}

//go:embed documents/starting.yaml
var startingDocument string

//go:embed documents/sample.yaml
var sampleDocument []byte

//go:embed documents/tables.yaml
var tablesDocument string
