package classify

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"
)

// WithTypes is the classification of a statement whose message names the types of
// its parameters, besides its text: their numbers in the order of the parameters, 0
// for one that the server infers, as is one without a number; and the names,
// schema.name, of such as are not built in. Each of these is a call of what the type
// runs, as a cast in the text is. A key that is compared with a parameter of a type
// that may be equal to several of its values binds no row: `where` says present.
// Otherwise, and without names, the classification stays what it is.
func (c Classification) WithTypes(types []uint32, names []string) Classification {
	if slices.ContainsFunc(c.KeyParams, func(p KeyParam) bool { return !p.binds(types) }) {
		where := slices.DeleteFunc(slices.Clone(c.Where), func(v string) bool { return v == WhereKeyEquality || v == WherePresent })
		c.Where = slices.Sorted(slices.Values(append(where, WherePresent)))
		c.Fingerprint = otherFingerprint(c.Fingerprint, "where "+WherePresent)
	}
	if len(names) == 0 {
		return c
	}
	names = slices.Compact(slices.Sorted(slices.Values(names)))
	c.Fingerprint = otherFingerprint(c.Fingerprint, names...)
	c.UserTypes, c.SafeRead, c.Class = true, false, stricter(c.Class, ClassWrite)
	if c.Run == RunReadFence {
		c.Run = RunTransaction
	}
	signals := []string{SignalUnknownFunction}
	c.Functions = slices.Compact(slices.Sorted(slices.Values(slices.Concat(c.Functions, names))))
	c.Signals = slices.Clone(c.Signals)
	for _, name := range names[:min(len(names), maxFacts)] {
		c.Signals = append(c.Signals, Signal{SignalUnknownFunction, severities[SignalUnknownFunction], name, c.Start})
	}
	if len(c.Functions) > maxFacts {
		c.Functions = c.Functions[:maxFacts:maxFacts]
		signals = append(signals, SignalOversizedFacts)
		c.Signals = append(c.Signals, Signal{SignalOversizedFacts, severities[SignalOversizedFacts], "", c.Start})
	}
	c.RiskSignals = slices.Compact(slices.Sorted(slices.Values(slices.Concat(c.RiskSignals, signals))))
	c.Signals = firstSignals(c.Signals)
	return c
}

func otherFingerprint(of string, parts ...string) string {
	sum := sha256.Sum256([]byte(of + "\x00" + strings.Join(parts, "\x00")))
	return "x" + hex.EncodeToString(sum[:8])
}

// firstUserOID is the least number of a type that somebody made (FirstNormalObjectId).
const firstUserOID = 16384

func (p KeyParam) binds(types []uint32) bool {
	if p.Number > len(types) || isInferredOID(types[p.Number-1]) {
		return p.Inferred
	}
	t := types[p.Number-1]
	return isExactOID(t) || p.Cast && t < firstUserOID // a domain's collation outlives a cast
}
