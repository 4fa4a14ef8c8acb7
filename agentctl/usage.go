package agentctl

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"writegate/eventlog/event"
	"writegate/projections"
)

// UsageQuery is what GET /v1/usage asks (spec/v1.md part 11).
type UsageQuery struct {
	Since, Until time.Time
	Interval     time.Duration // an hour or a day
	ByAgent      bool          // grouped by agent, else by credential
}

// UsageFigures are the figures of one item.
type UsageFigures struct {
	Requests        int64  `json:"requests"`
	Throttled       int64  `json:"throttled"`
	Errors          int64  `json:"errors"`
	TelemetryEvents int64  `json:"telemetry_events"`
	InputTokens     int64  `json:"input_tokens"`
	OutputTokens    int64  `json:"output_tokens"`
	CostUSD         string `json:"cost_usd"`
	SQLDecisions    int64  `json:"sql_decisions"`
	Verifications   int64  `json:"verifications"`
}

func usageFigures(u *projections.UsageSums) UsageFigures {
	return UsageFigures{u.Requests, u.Throttled, u.Errors, u.TelemetryEvents, u.InputTokens, u.OutputTokens, Dollars(u.CostMicros), u.SQLDecisions, u.Verifications}
}

// UsageItem is one bucket of one group.
type UsageItem struct {
	Start string            `json:"start"`
	End   string            `json:"end"`
	Group map[string]string `json:"group"`
	UsageFigures
}

// UsageBody is the answer of GET /v1/usage.
type UsageBody struct {
	Items      []UsageItem  `json:"items"`
	NextCursor *string      `json:"next_cursor"`
	Totals     UsageFigures `json:"totals"`
	From       string       `json:"from"`
	To         string       `json:"to"`
	RateLimit  RateBody     `json:"rate_limit"`
	AsOfSeq    uint64       `json:"as_of_seq"`
}

// RateBody is how the calling credential stands at this moment.
type RateBody struct {
	Limit         int `json:"limit"`
	WindowSeconds int `json:"window_seconds"`
	Used          int `json:"used"`
	Remaining     int `json:"remaining"`
	ResetSeconds  int `json:"reset_seconds"`
}

// Dollars renders micros as a decimal with six places.
func Dollars(micros int64) string {
	sign := ""
	if micros < 0 {
		sign, micros = "-", -micros
	}
	return fmt.Sprintf("%s%d.%06d", sign, micros/1_000_000, micros%1_000_000)
}

// maxUsageItems bounds an answer.
const maxUsageItems = 1000

// Usage adds up what the log says of a project's credentials or agents, in whole
// buckets around the times asked for.
func (s *Service) Usage(ctx context.Context, c *Caller, q UsageQuery) (UsageBody, error) {
	from, to := q.Since.UTC().Truncate(q.Interval), q.Until.UTC().Add(q.Interval-1).Truncate(q.Interval)
	body := UsageBody{Items: []UsageItem{}, RateLimit: s.rate(c), From: event.Timestamp(from), To: event.Timestamp(to)}
	if q.Until.Before(q.Since) {
		return body, InvalidFields(FieldError{"/until", "must not be before since"})
	}
	u := usageWalk{ctx: ctx, only: c.agentOnly(), byAgent: q.ByAgent, buckets: map[usageBucket]*projections.UsageSums{}}
	err := s.view(ctx, func(view *projections.View) error {
		body.AsOfSeq = view.Applied().Seq
		return view.Usage(c.Project, q.Interval, from, to, u.take)
	})
	if err != nil {
		return body, err
	}
	var totals projections.UsageSums
	for _, b := range u.order() {
		sums := u.buckets[b]
		totals.Plus(sums)
		start := time.Unix(b.start, 0).UTC()
		body.Items = append(body.Items, UsageItem{Start: event.Timestamp(start), End: event.Timestamp(start.Add(q.Interval)), Group: map[string]string{q.groupName(): b.group}, UsageFigures: usageFigures(sums)})
	}
	body.Totals = usageFigures(&totals)
	return body, nil
}

func (q *UsageQuery) groupName() string {
	if q.ByAgent {
		return "agent_id"
	}
	return "credential_id"
}

// rate is the limit of the tighter of the caller's credentials.
func (s *Service) rate(c *Caller) RateBody {
	var tight Quota
	for i, id := range c.CredentialIDs() {
		if q := s.limits.look(id, s.Now()); i == 0 || q.Remaining < tight.Remaining {
			tight = q
		}
	}
	return RateBody{Limit: RequestLimit, WindowSeconds: WindowSeconds, Used: RequestLimit - tight.Remaining, Remaining: tight.Remaining, ResetSeconds: tight.ResetSeconds}
}

// usageBucket is one bucket of one group.
type usageBucket struct {
	start int64 // s since 1970
	group string
}

type usageWalk struct {
	ctx     context.Context
	only    string // agent; "" = all
	byAgent bool
	buckets map[usageBucket]*projections.UsageSums
	looked  int
}

func (u *usageWalk) take(start time.Time, credential, agent string, sums *projections.UsageSums) error {
	if u.looked++; u.looked%4096 == 0 && u.ctx.Err() != nil {
		return u.ctx.Err()
	}
	group := credential
	if u.byAgent {
		group = agent
		if !projections.OfAgent(credential) { // a request with both credentials is one of its agent's
			sums.Requests, sums.Throttled, sums.Errors = 0, 0, 0
		}
	}
	// A group without a name, and one that did nothing, are not told.
	if group == "" || u.only != "" && agent != u.only || *sums == (projections.UsageSums{}) {
		return nil
	}
	key := usageBucket{start.Unix(), group}
	if u.buckets[key] == nil {
		if len(u.buckets) == maxUsageItems {
			return InvalidFields(FieldError{"/interval", fmt.Sprintf("gives more than %d items: ask for less time or for days", maxUsageItems)})
		}
		u.buckets[key] = new(projections.UsageSums)
	}
	u.buckets[key].Plus(sums)
	return nil
}

func (u *usageWalk) order() []usageBucket {
	list := make([]usageBucket, 0, len(u.buckets))
	for b := range u.buckets {
		list = append(list, b)
	}
	slices.SortFunc(list, func(a, b usageBucket) int {
		return cmp.Or(cmp.Compare(b.start, a.start), cmp.Compare(a.group, b.group))
	})
	return list
}

// ParseInterval reads 1h or 1d; "" is a day.
func ParseInterval(text string) (time.Duration, error) {
	switch text {
	case "", "1d":
		return 24 * time.Hour, nil
	case "1h":
		return time.Hour, nil
	}
	return 0, InvalidFields(FieldError{"/interval", strconv.Quote(text) + " is not taken: 1h or 1d"})
}
