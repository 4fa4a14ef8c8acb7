package controlplane

import (
	"context"
	"errors"
	"sync"
	"time"
)

// The charts of the overview. Counts of decisions come from the gate's counters,
// read every few seconds; what lies before the start of this process is read once
// from the log, as far back as the chart goes.
const (
	sampleEvery   = 5 * time.Second
	chartMinutes  = 60
	backfillPages = 20 // of a thousand decisions each, or of fewer that are large
)

// A minute is one bar of the chart.
type minute struct {
	Start                  time.Time
	Allow, Block, Approval int64
	Unenforced             int64   // of Block and Approval: the statement ran all the same
	GateP95, DatabaseP95   float64 // milliseconds; the newest reading of the minute
	Known                  bool
}

type samples struct {
	now     func() time.Time
	mu      sync.Mutex
	minutes map[time.Time]*minute
	last    map[string]int64 // decisions, as last read
	ran     int64            // decisions that were not enforced, as last read
	total   int64            // requests, as last read
	uptime  int64            // seconds, as last read
	began   time.Time        // when the gate that was last read started, to the second
	filling sync.Mutex
	filled  bool // what came before was read from the log, as far as it can be
}

// restarted is how much later a start must be to be another one: uptimes are
// whole seconds and answers take their time.
const restarted = 5 * time.Second

func newSamples(now func() time.Time) *samples {
	return &samples{now: now, minutes: make(map[time.Time]*minute)}
}

// at gives the bucket of a moment; the caller holds mu.
func (s *samples) at(t time.Time) *minute {
	start := t.UTC().Truncate(time.Minute)
	m, ok := s.minutes[start]
	if !ok {
		m = &minute{Start: start}
		s.minutes[start] = m
		for old := range s.minutes {
			if start.Sub(old) > 2*chartMinutes*time.Minute {
				delete(s.minutes, old)
			}
		}
	}
	m.Known = true
	return m
}

// add counts what was decided since the last reading. A gate that was started
// anew counts from zero. Readings come from the clock and from whoever opens the
// overview; one that was overtaken by another says nothing new.
func (s *samples) add(read stats) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	m := s.at(now)
	began := now.Add(-time.Duration(read.UptimeSeconds) * time.Second)
	switch {
	case s.last == nil:
	case began.Sub(s.began) > restarted && (read.RequestsTotal < s.total || read.UptimeSeconds < s.uptime):
		s.last, s.ran = map[string]int64{}, 0
	case read.RequestsTotal < s.total:
		return
	}
	if s.last != nil && s.filled {
		m.Allow += max(0, read.Decisions["ALLOW"]-s.last["ALLOW"])
		m.Block += max(0, read.Decisions["BLOCK"]-s.last["BLOCK"])
		m.Approval += max(0, read.Decisions["REQUIRE_APPROVAL"]-s.last["REQUIRE_APPROVAL"])
		m.Unenforced += max(0, read.Unenforced-s.ran)
	}
	s.keep(read, began)
	m.GateP95 = max(0, read.LatencyMS["total"].P95-read.LatencyMS["database"].P95)
	m.DatabaseP95 = read.LatencyMS["database"].P95
}

// known tells whether what was decided before the first reading was looked for.
func (s *samples) known() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.filled
}

// keep remembers a reading; the caller holds mu.
func (s *samples) keep(read stats, began time.Time) {
	s.last, s.ran, s.total, s.uptime, s.began = read.Decisions, read.Unenforced, read.RequestsTotal, read.UptimeSeconds, began
}

func (s *samples) count(e auditEvent) {
	if describes(e) { // the gate's own counters leave it out, too
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.at(e.Timestamp)
	if unenforced(e) != "" {
		m.Unenforced++
	}
	switch e.Decision {
	case "ALLOW":
		m.Allow++
	case "BLOCK":
		m.Block++
	case "REQUIRE_APPROVAL":
		m.Approval++
	}
}

// hour gives the minutes of the chart, oldest first.
func (s *samples) hour() []minute {
	s.mu.Lock()
	defer s.mu.Unlock()
	first := s.now().UTC().Truncate(time.Minute).Add(-(chartMinutes - 1) * time.Minute)
	list := make([]minute, chartMinutes)
	for i := range list {
		start := first.Add(time.Duration(i) * time.Minute)
		list[i] = minute{Start: start}
		if m, ok := s.minutes[start]; ok {
			list[i] = *m
		}
	}
	return list
}

// sample reads the counters once. A gate out of reach leaves a gap.
func (s *Server) sample(ctx context.Context) (stats, error) {
	read, err := fetch[stats](ctx, s, "/runtime/stats")
	if err == nil {
		s.backfill(ctx, read)
		s.samples.add(read)
	}
	return read, err
}

// backfill reads the decisions of the last hour from the log, once, as soon as the gate can
// be reached. The counters were read before: a decision between the two is counted once, by
// the log.
func (s *Server) backfill(ctx context.Context, read stats) {
	if !s.samples.filling.TryLock() {
		return
	}
	defer s.samples.filling.Unlock()
	if s.samples.known() {
		return
	}
	var decided []auditEvent
	since := s.now().Add(-chartMinutes * time.Minute).UTC().Format(time.RFC3339)
	cursor := ""
	for range backfillPages {
		page, err := ask[list[auditEvent]](ctx, s, request{path: "/audit", query: pairsOf([]string{"event_type", "decision_recorded", "since", since, "limit", "1000", "cursor", cursor})})
		if refused := new(refusal); errors.As(err, &refused) {
			break // of a log that can't be read
		} else if err != nil {
			return
		}
		decided = append(decided, page.Items...)
		if cursor = page.next(); cursor == "" {
			break
		}
	}
	for _, e := range decided {
		s.samples.count(e)
	}
	s.samples.mu.Lock()
	defer s.samples.mu.Unlock()
	s.samples.filled = true
	s.samples.keep(read, s.now().Add(-time.Duration(read.UptimeSeconds)*time.Second))
}
