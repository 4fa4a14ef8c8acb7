package sqlgate

import (
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"writegate/sqlgate/policy"
)

// Phases of a statement whose time is kept for GET /runtime/stats.
const (
	phaseClassify = iota
	phaseDecide
	phaseLog
	phaseDatabase
	phaseTotal
	phases
)

var phaseNames = [phases]string{"classify", "decide", "log", "database", "total"}

// highestMicros is the longest time a histogram tells apart: ten minutes.
const highestMicros = int64(10 * time.Minute / time.Microsecond)

// Stats are the counters of the statements since the start.
type Stats struct {
	Requests    int64                  `json:"requests_total"`
	ByQueryType map[string]int64       `json:"requests_by_query_type"`
	Decisions   map[string]int64       `json:"decisions"`
	Unenforced  int64                  `json:"unenforced"` // decisions to block or to ask that the mode did not enforce
	Latency     map[string]Percentiles `json:"latency_ms"`
}

// Percentiles are times in milliseconds.
type Percentiles struct {
	P50 float64 `json:"p50"`
	P95 float64 `json:"p95"`
	P99 float64 `json:"p99"`

	Count   uint64  `json:"-"` // times measured
	Seconds float64 `json:"-"` // all of them together
}

// meters collects Stats. Counting is on the path of every statement, so the
// lock is held for a few map and histogram updates only.
type meters struct {
	requests atomic.Int64

	mu         sync.Mutex // guards what follows
	queryTypes map[string]int64
	decisions  map[string]int64
	unenforced int64
	times      [phases]*hdrhistogram.Histogram
}

func newMeters() *meters {
	m := &meters{queryTypes: map[string]int64{}, decisions: map[string]int64{}}
	for i := range m.times {
		m.times[i] = hdrhistogram.New(1, highestMicros, 2)
	}
	return m
}

// A stopwatch measures the phases of one statement.
type stopwatch struct {
	begin time.Time
	spent [phases]time.Duration
}

// time adds the time since begin to a phase.
func (w *stopwatch) time(phase int, begin time.Time) { w.spent[phase] += time.Since(begin) }

// decided counts a statement that got a decision.
func (m *meters) decided(s *submission) {
	s.watch.spent[phaseTotal] = time.Since(s.watch.begin)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.queryTypes[s.classification.QueryType]++
	m.decisions[string(s.result.Decision)]++
	if d := s.result.Decision; (d == policy.Block || d == policy.RequireApproval) && !s.enforced && s.unknown == nil { // none was made where it was refused before
		m.unenforced++
	}
	for i, d := range s.watch.spent {
		if d > 0 {
			_ = m.times[i].RecordValue(min(max(d.Microseconds(), 1), highestMicros)) // in range by construction
		}
	}
}

func (m *meters) snapshot() Stats {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := Stats{Requests: m.requests.Load(), ByQueryType: maps.Clone(m.queryTypes), Decisions: maps.Clone(m.decisions), Unenforced: m.unenforced, Latency: map[string]Percentiles{}}
	for i, h := range m.times {
		at := func(q float64) float64 { return float64(h.ValueAtQuantile(q)) / 1000 }
		s.Latency[phaseNames[i]] = Percentiles{P50: at(50), P95: at(95), P99: at(99),
			Count: uint64(h.TotalCount()), Seconds: h.Mean() * float64(h.TotalCount()) / 1e6}
	}
	return s
}
