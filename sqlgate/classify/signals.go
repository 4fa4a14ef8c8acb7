package classify

import (
	"cmp"
	"slices"
)

// maxSignals bounds Classification.Signals; maxFacts bounds every list of facts.
const (
	maxSignals = 32
	maxFacts   = 256
)

var severities = map[string]string{
	SignalUnknownNode: SeverityFloor, SignalServerFileAccess: SeverityFloor, SignalServerProgram: SeverityFloor,
	SignalSQLExecutingFunction: SeverityFloor, SignalRemoteAccess: SeverityFloor, SignalBackendControl: SeverityFloor,
	SignalOpaqueCode: SeverityFloor, SignalIdentitySwitch: SeverityFloor, SignalSecretCatalogRead: SeverityFloor,
	SignalOversizedFacts: SeverityFloor,

	SignalDataModifyingCTE: SeverityHigh, SignalSelectInto: SeverityHigh, SignalWriteWithoutWhere: SeverityHigh,
	SignalTautologicalWhere: SeverityHigh, SignalDestructiveDDL: SeverityHigh, SignalSystemCatalogWrite: SeverityHigh,
	SignalPrivilegeChange: SeverityHigh, SignalUnknownFunction: SeverityHigh, SignalSessionChange: SeverityHigh,
	SignalTransactionControl: SeverityHigh,

	SignalAdvisoryLock: SeverityMedium, SignalRowLocking: SeverityMedium, SignalExplainAnalyze: SeverityMedium,
	SignalVolatileFunction: SeverityMedium, SignalSequenceChange: SeverityMedium, SignalDelayFunction: SeverityMedium,
	SignalCascade: SeverityMedium, SignalBulkCopy: SeverityMedium, SignalConfusableText: SeverityMedium,
}

// classes, strictest first.
var classes = []string{
	ClassUnknown, ClassProcedural, ClassDCL, ClassDDL, ClassMaintenance,
	ClassUtility, ClassTCL, ClassSession, ClassWrite, ClassRead,
}

// stricter gives the stricter of two classes.
func stricter(a, b string) string {
	if slices.Index(classes, b) < slices.Index(classes, a) {
		return b
	}
	return a
}

// A nameSet collects names without duplicates. Small sets, which are nearly
// all, are searched; a large one gets an index.
type nameSet struct {
	list  []string
	index map[string]struct{}
}

const indexedFrom = 16

func (s *nameSet) add(name []byte) {
	if s.contains(name) {
		return
	}
	s.addNew(string(name))
}

func (s *nameSet) addWord(word string) {
	if !slices.Contains(s.list, word) {
		s.addNew(word)
	}
}

func (s *nameSet) contains(name []byte) bool {
	if s.index != nil {
		_, ok := s.index[string(name)]
		return ok
	}
	for _, n := range s.list {
		if n == string(name) {
			return true
		}
	}
	return false
}

func (s *nameSet) addNew(name string) {
	s.list = append(s.list, name)
	if s.index != nil {
		s.index[name] = struct{}{}
		return
	}
	if len(s.list) > indexedFrom {
		s.index = make(map[string]struct{}, 4*indexedFrom)
		for _, n := range s.list {
			s.index[n] = struct{}{}
		}
	}
}

// reset empties the set and keeps its room, unless that has grown large.
func (s *nameSet) reset() {
	s.index = nil
	if s.list = s.list[:0]; cap(s.list) > 4*indexedFrom {
		s.list = nil
	}
}

// none is every empty list of every classification: empty, never nil.
var none = []string{}

// moveTo appends the names in order of bytes, cut at maxFacts, to the one slice
// that all lists of a classification lie in, and tells whether it had to cut.
func (s *nameSet) moveTo(all *[]string) (list []string, cut bool) {
	if len(s.list) == 0 {
		return none, false
	}
	slices.Sort(s.list)
	from := len(*all)
	*all = append(*all, s.list[:min(len(s.list), maxFacts)]...)
	return (*all)[from:len(*all):len(*all)], len(s.list) > maxFacts
}

// raise adds a signal with its object and place.
func (w *walk) raise(signal, subject string, at int32) {
	w.steps += raiseSteps
	w.bounded()
	w.risk.addWord(signal)
	s := Signal{Signal: signal, Severity: severities[signal], Subject: subject, At: w.place(at)}
	w.signals = append(w.signals, s)
	if len(w.signals) >= 64*maxSignals {
		w.signals = firstSignals(w.signals)
	}
}

// place gives the offset in the text of an entry: its own, or that of the
// nearest node around it that has one.
func (w *walk) place(at int32) int {
	for ; at >= 0; at = w.e[at].parent {
		w.steps++
		if m := w.e[at].msg; m != 0 && m != listEntry && w.e[at].a >= 0 {
			return int(w.e[at].a)
		}
	}
	return w.start
}

// firstSignals keeps the first maxSignals by offset, each once.
func firstSignals(list []Signal) []Signal {
	slices.SortFunc(list, func(a, b Signal) int {
		return cmp.Or(cmp.Compare(a.At, b.At), cmp.Compare(a.Signal, b.Signal), cmp.Compare(a.Subject, b.Subject))
	})
	list = slices.Compact(list)
	return list[:min(len(list), maxSignals)]
}
