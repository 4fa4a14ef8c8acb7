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
// that may be equal to several of its values binds no row: `where` says present. One of
// type xml or jsonpath is what a cast to that is in the text. Otherwise, and without names,
// the classification stays what it is.
func (c Classification) WithTypes(types []uint32, names []string) Classification {
	if slices.ContainsFunc(c.KeyParams, func(p KeyParam) bool { return !p.binds(types) }) {
		c.Where = among(unkeyed(c.Where), []string{WherePresent})
		c.Fingerprint = otherFingerprint(c.Fingerprint, "where "+WherePresent)
	}
	if c.Beyond != nil {
		more := c.Beyond.WithTypes(types, nil)
		c.Beyond = &more
	}
	if c.Plain != nil {
		plain := c.Plain.WithTypes(types, nil)
		c.Plain = &plain
	}
	for _, typ := range []struct {
		name      string
		oid, list uint32 // of itself, and of its arrays
	}{{"jsonpath", 4072, 4073}, {"xml", 142, 143}} {
		if slices.Contains(types, typ.oid) || slices.Contains(types, typ.list) {
			c.Fingerprint = otherFingerprint(c.Fingerprint, SignalDelayFunction, typ.name)
			c = c.withCallSignals(SignalDelayFunction, []string{typ.name})
			c.Signals = firstSignals(c.Signals)
		}
	}
	if len(names) == 0 {
		return c
	}
	text, named := c, among(names, c.Types)
	c = c.WithCalls(names)
	c.UserTypes = true
	if text.UserTypes { // of the text
		if text.Plain == nil {
			return c
		}
		text = *text.Plain
	}
	text.Functions, text.UserTypes, text.Fingerprint = among(text.Functions, names), true, otherFingerprint(text.Fingerprint, names...)
	if len(text.Functions) <= maxFacts {
		c.Plain, c.Types = text.ifPlain(), named
	}
	return c
}

// ifPlain is what Plain keeps of a classification: nothing of a statement that does more than read
// and write, or calls something unknown besides.
func (c *Classification) ifPlain() *Classification {
	if c.Class != ClassRead && c.Class != ClassWrite || slices.Contains(c.RiskSignals, SignalUnknownFunction) {
		return nil
	}
	return c
}

// WithPlainTypes is the classification where none of Types runs code of the users', as the catalogue tells.
func (c Classification) WithPlainTypes() Classification {
	c = *c.Plain
	c.ClassificationVersion = Version
	return c
}

// WithCalls is the classification of a statement that calls functions, schema.name, of
// which its text alone does not tell. It is no read any more, and what calls more than
// its text tells of may give more rows, so it is what Beyond says, with these.
func (c Classification) WithCalls(names []string) Classification {
	if len(names) == 0 {
		return c
	}
	if c.Beyond != nil {
		normalized := c.NormalizedSQL
		c = *c.Beyond
		c.NormalizedSQL = normalized
	}
	c.Plain, c.Types = nil, nil
	names = slices.Compact(slices.Sorted(slices.Values(names)))
	c.Fingerprint = otherFingerprint(c.Fingerprint, names...)
	c = c.withCallSignals(SignalUnknownFunction, names[:min(len(names), maxFacts)])
	c.Functions = slices.Compact(slices.Sorted(slices.Values(slices.Concat(c.Functions, names))))
	if len(c.Functions) > maxFacts {
		c.Functions = c.Functions[:maxFacts:maxFacts]
		c.RiskSignals = among(c.RiskSignals, []string{SignalOversizedFacts})
		c.Signals = append(c.Signals, Signal{SignalOversizedFacts, severities[SignalOversizedFacts], "", c.Start})
	}
	c.Signals = firstSignals(c.Signals)
	return c
}

// withCallSignals is what callSignal makes of a classification, but for the order of Signals.
func (c Classification) withCallSignals(signal string, subjects []string) Classification {
	c.SafeRead, c.Class = false, stricter(c.Class, ClassWrite)
	if c.Run == RunReadFence {
		c.Run = RunTransaction
	}
	c.RiskSignals = among(c.RiskSignals, []string{signal})
	c.Signals = slices.Clone(c.Signals)
	for _, subject := range subjects {
		c.Signals = append(c.Signals, Signal{signal, severities[signal], subject, c.Start})
	}
	return c
}

// Beside are facts of a statement that its text does not tell: of what stands in the
// database behind the names in it.
type Beside struct {
	TablesRead     []string
	TablesWritten  []string
	ColumnsWritten []string
	Functions      []string
	Signals        []Signal // without severity and place
	Classes        []string // the statement's is as strict as each
	Texts          []string // of the views, rules, triggers and policies behind it, or what stands for them: another one makes another statement of it
	Unkeyed        bool     // no key binds the rows
	Catalog        string   // Engine.Catalog
}

// WithBeside is the classification with these facts too. A statement that calls what its text
// does not tell of is what Beyond says, as for WithCalls.
func (c Classification) WithBeside(b Beside) Classification {
	if len(b.Signals) > 0 && c.Beyond != nil {
		normalized := c.NormalizedSQL
		c = *c.Beyond
		c.NormalizedSQL = normalized
	}
	var subjects []string
	c.Signals = slices.Clone(c.Signals)
	for _, s := range b.Signals {
		c.RiskSignals = among(c.RiskSignals, []string{s.Signal})
		c.Signals = append(c.Signals, Signal{s.Signal, severities[s.Signal], s.Subject, c.Start})
		subjects = append(subjects, s.Signal, s.Subject)
		if s.Signal == SignalUnknownFunction {
			c.Class = stricter(c.Class, ClassWrite)
		}
	}
	c.TablesRead, c.TablesWritten, c.ColumnsWritten, c.Functions = among(c.TablesRead, b.TablesRead), among(c.TablesWritten, b.TablesWritten), among(c.ColumnsWritten, b.ColumnsWritten), among(c.Functions, b.Functions)
	for _, list := range []*[]string{&c.TablesRead, &c.TablesWritten, &c.ColumnsWritten, &c.Functions} {
		if len(*list) > maxFacts {
			*list = (*list)[:maxFacts:maxFacts]
			c.RiskSignals = among(c.RiskSignals, []string{SignalOversizedFacts})
			c.Signals = append(c.Signals, Signal{SignalOversizedFacts, severities[SignalOversizedFacts], "", c.Start})
		}
	}
	c.Signals = firstSignals(c.Signals)
	for _, class := range b.Classes {
		c.Class = stricter(c.Class, class)
	}
	if c.SafeRead = c.Class == ClassRead && len(c.RiskSignals) == 0; !c.SafeRead && c.Run == RunReadFence {
		c.Run = RunTransaction
	}
	if b.Unkeyed {
		c.Where = unkeyed(c.Where)
	}
	c.ClassificationVersion, c.Engine.Catalog = Version, b.Catalog
	c.Fingerprint = otherFingerprint(c.Fingerprint, slices.Concat(subjects, b.TablesRead, b.TablesWritten, b.ColumnsWritten, b.Functions, b.Texts, c.Where)...)
	return c
}

// TemporarySchema is the name by which text and facts call the session's own schema.
const TemporarySchema = "pg_temp"

// WithTemporary is the classification in a session that has temporary relations of
// these names; inherits says that rows of one are among those of another table. The
// schema is the one in which the facts have names without a schema: such a name may mean
// the session's own relation there, so it stands in the facts under both. Where a
// relation's value is set (a view, one with rules or triggers), a write of it may reach
// any table, which tables_written says as ?.* and columns_written as ?.*.*. What is bound
// by a key of a relation that the client made is bound by nothing it can't choose:
// `where` says present.
func (c Classification) WithTemporary(schema string, relations map[string]bool, inherits bool) Classification {
	if len(relations) > 0 { // the row type of one may bear the name
		c.Plain = nil
	}
	named, elsewhere := inherits, false
	definitions := []string{TypeCreate, TypeAlter, TypeDrop} // which hand no row on
	defines := slices.Contains(definitions, c.QueryType) && !slices.ContainsFunc(c.QueryTypes, func(t string) bool { return t != TypeSelect && !slices.Contains(definitions, t) })
	both := func(list []string, written bool) []string {
		var more []string
		for _, fact := range list {
			name, unqualified := strings.CutPrefix(fact, schema+".") // a schema's name may have a dot
			if strings.HasPrefix(fact, TemporarySchema) {
				_, name, _ = strings.Cut(fact, ".")
			}
			reaches, temporary := relations[name]
			switch {
			case strings.HasPrefix(fact, TemporarySchema):
				named = true
			case unqualified && temporary:
				named, more = true, append(more, TemporarySchema+"."+name)
			default:
				continue
			}
			elsewhere = elsewhere || written && reaches && !defines
		}
		return among(list, more)
	}
	c.TablesRead, c.TablesWritten = both(c.TablesRead, false), both(c.TablesWritten, true)
	if !named {
		return c
	}
	var columns, whole []string // of the same tables
	for _, fact := range c.ColumnsWritten {
		for name := range relations {
			if column, found := strings.CutPrefix(fact, schema+"."+name+"."); found {
				columns, whole = append(columns, TemporarySchema+"."+name+"."+column), append(whole, TemporarySchema+"."+name+".*")
			}
		}
	}
	if len(c.ColumnsWritten)+len(columns) >= maxFacts {
		columns = whole
	}
	if elsewhere {
		c.TablesWritten, columns = among(c.TablesWritten, []string{"?.*"}), append(columns, "?.*.*")
	}
	c.ColumnsWritten = among(c.ColumnsWritten, columns)
	c.Where, c.ClassificationVersion = unkeyed(c.Where), Version
	c.Fingerprint = otherFingerprint(c.Fingerprint, slices.Concat([]string{TemporarySchema}, c.TablesRead, c.TablesWritten)...)
	for _, list := range []*[]string{&c.TablesRead, &c.TablesWritten, &c.ColumnsWritten} {
		if len(*list) > maxFacts {
			*list, c.SafeRead = (*list)[:maxFacts:maxFacts], false
			c.RiskSignals = among(c.RiskSignals, []string{SignalOversizedFacts})
			c.Signals = firstSignals(append(slices.Clone(c.Signals), Signal{SignalOversizedFacts, severities[SignalOversizedFacts], "", c.Start}))
		}
	}
	return c
}

// among is a list of facts with more of them, in order and each once.
func among(list, more []string) []string {
	if len(more) == 0 {
		return list
	}
	return slices.Compact(slices.Sorted(slices.Values(slices.Concat(list, more))))
}

// unkeyed is a list of values of where, in which none is bound by a key.
func unkeyed(where []string) []string {
	if !slices.Contains(where, WhereKeyEquality) {
		return where
	}
	return among(slices.DeleteFunc(slices.Clone(where), func(v string) bool { return v == WhereKeyEquality }), []string{WherePresent})
}

// namesTemporary tells whether the facts have a relation of the session's own schema.
func (c *Classification) namesTemporary() bool {
	own := func(fact string) bool { return strings.HasPrefix(fact, TemporarySchema) }
	return slices.ContainsFunc(c.TablesRead, own) || slices.ContainsFunc(c.TablesWritten, own)
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
