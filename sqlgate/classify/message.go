package classify

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"
)

// WithTypes is the classification of a statement whose message names types that
// are not built in, besides its text: the types of its parameters. Each is a call
// of what the type runs, as a cast in the text is. Names are schema.name; without
// any the classification stays what it is.
func (c Classification) WithTypes(names []string) Classification {
	if len(names) == 0 {
		return c
	}
	names = slices.Compact(slices.Sorted(slices.Values(names)))
	sum := sha256.Sum256([]byte(c.Fingerprint + "\x00" + strings.Join(names, "\x00")))
	c.Fingerprint = "x" + hex.EncodeToString(sum[:8])
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
