package policy

import "strings"

// StartingName is the policy that an installation begins with unless told
// another name.
const StartingName = "core-write-gate"

// Starting is the document that `gate policy init` writes, as version 1.0.0 of
// the given name ("" is StartingName): reads pass, ordinary writes and schema
// changes ask for an approval, everything else is blocked. The name is put in
// as it is; Load judges it.
func Starting(name string) []byte {
	if name == "" {
		name = StartingName
	}
	return []byte(strings.Replace(startingDocument, "name: "+StartingName, "name: "+name, 1))
}

// Sample is the policy of the demonstration: a shop with customers, orders and
// order items.
func Sample() []byte { return append([]byte(nil), sampleDocument...) }
