package main

import (
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

// The command line as a person has it before there is a database: the scripts
// run the binary itself, in a folder and with an environment of their own.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{Dir: "testdata/script", RequireUniqueNames: true})
}
