package controlplane

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"writegate/commands/fault"
	"writegate/http/httpd"
)

// gateHealth asks the gate how it is, for the frame of every page. down says in
// words why there is no answer.
func (s *Server) gateHealth(c *httpd.Call) (h *health, down string) {
	read, err := fetch[health](c.Request.Context(), s, "/health")
	if err != nil {
		return nil, wordsOf(err)
	}
	read.Database.Message = forPerson(read.Database.Message)
	return &read, ""
}

// wordsOf is what a person may read of an error.
func wordsOf(err error) string {
	var refused *refusal
	if errors.As(err, &refused) {
		return refused.Message
	}
	return forPerson(fault.Of(err).Message)
}

// overviewView is the first page. Each part that could not be had is nil, and
// Missing says why.
type overviewView struct {
	Stats     *stats
	Pending   []approvalRow // those with the highest risk
	FirstEnds time.Time
	Unknown   []execution
	Events    []auditEvent
	Waiting   bool // more approvals than those
	Hour      []minute
	Totals    minute
	Decided   bool // something was, in the last hour
	Timed     bool // and its time was taken
	Checked   *checked
	Stamp     string
	Policy    *policyStatus
	Missing   []string
}

func (s *Server) overview(c *httpd.Call, p *page) error {
	v := overviewView{Checked: s.reports.last(), Stamp: stampOf(s.now())}
	ctx, _ := s.looking(c)
	var all gather
	together(&all, ctx, func(ctx context.Context) error { return into(&v.Stats)(s.sample(ctx)) })
	together(&all, ctx, func(ctx context.Context) error { return into(&v.Policy)(fetch[policyStatus](ctx, s, "/policy/status")) })
	together(&all, ctx, func(ctx context.Context) error {
		got, err := read[approval](ctx, s, "/approvals", inboxLimit, "status", "pending")
		v.Pending, v.FirstEnds = s.worst(got.Items)
		s.nameAgents(ctx, v.Pending)
		v.Waiting = min(len(got.Items), shownPending) < len(got.Items)
		return err
	})
	together(&all, ctx, func(ctx context.Context) error {
		got, err := read[execution](ctx, s, "/executions", 5, "execution_state", "unknown")
		v.Unknown = got.Items
		return err
	})
	together(&all, ctx, func(ctx context.Context) error {
		got, err := read[auditEvent](ctx, s, "/audit", 12)
		v.Events = got.Items
		return err
	})
	v.Missing = slices.DeleteFunc(all.wait(), func(words string) bool { return words == p.Down }) // the frame says that
	v.minutes(s.samples.hour())
	p.Live, p.Body = "*", v
	return nil
}

// minutes takes what the charts show.
func (v *overviewView) minutes(hour []minute) {
	v.Hour = hour
	for _, m := range hour {
		v.Totals.Allow, v.Totals.Block, v.Totals.Approval = v.Totals.Allow+m.Allow, v.Totals.Block+m.Block, v.Totals.Approval+m.Approval
		v.Totals.Unenforced += m.Unenforced
		v.Timed = v.Timed || m.GateP95 > 0 || m.DatabaseP95 > 0
	}
	v.Decided = v.Totals.Allow+v.Totals.Block+v.Totals.Approval > 0
}

// shownPending is how many of the pending approvals the overview shows.
const shownPending = 5

// worst gives the approvals to decide first, and when the first of all ends.
func (s *Server) worst(items []approval) (rows []approvalRow, first time.Time) {
	for _, a := range items {
		if first.IsZero() || a.ExpiresAt.Before(first) {
			first = a.ExpiresAt
		}
	}
	rows = s.rows(items)
	slices.SortFunc(rows, triage)
	return rows[:min(len(rows), shownPending)], first
}

func into[T any](target **T) func(T, error) error {
	return func(value T, err error) error {
		if err == nil {
			*target = &value
		}
		return err
	}
}

// gather runs the questions of a page side by side.
type gather struct {
	work    sync.WaitGroup
	mu      sync.Mutex
	missing []string
}

func together(g *gather, ctx context.Context, ask func(context.Context) error) {
	g.work.Go(func() {
		err := ask(ctx)
		if err == nil {
			return
		}
		g.mu.Lock()
		defer g.mu.Unlock()
		words := wordsOf(err)
		for _, known := range g.missing {
			if known == words {
				return
			}
		}
		g.missing = append(g.missing, words)
	})
}

func (g *gather) wait() []string {
	g.work.Wait()
	return g.missing
}

// remaining is what is left of an approval's time.
func remaining(until, now time.Time) int64 {
	return max(0, int64(until.Sub(now).Round(time.Second)/time.Second))
}
