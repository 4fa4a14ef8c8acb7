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

// UsageSums are the figures of one item.
type UsageSums struct {
	Requests        int64  `json:"requests"`
	Throttled       int64  `json:"throttled"`
	Errors          int64  `json:"errors"`
	TelemetryEvents int64  `json:"telemetry_events"`
	InputTokens     int64  `json:"input_tokens"`
	OutputTokens    int64  `json:"output_tokens"`
	CostUSD         string `json:"cost_usd"`
	SQLDecisions    int64  `json:"sql_decisions"`
	Verifications   int64  `json:"verifications"`
	costMicros      int64
}

// UsageItem is one bucket of one group.
type UsageItem struct {
	Start string            `json:"start"`
	End   string            `json:"end"`
	Group map[string]string `json:"group"`
	*UsageSums
}

// UsageBody is the answer of GET /v1/usage.
type UsageBody struct {
	Items      []UsageItem `json:"items"`
	NextCursor *string     `json:"next_cursor"`
	Totals     *UsageSums  `json:"totals"`
	RateLimit  RateBody    `json:"rate_limit"`
	AsOfSeq    uint64      `json:"as_of_seq"`
}

// RateBody is how the calling credential stands at this moment.
type RateBody struct {
	Limit         int `json:"limit"`
	WindowSeconds int `json:"window_seconds"`
	Used          int `json:"used"`
	Remaining     int `json:"remaining"`
	ResetSeconds  int `json:"reset_seconds"`
}

func (a *UsageSums) plus(b *UsageSums) {
	a.Requests += b.Requests
	a.Throttled += b.Throttled
	a.Errors += b.Errors
	a.TelemetryEvents += b.TelemetryEvents
	a.InputTokens += b.InputTokens
	a.OutputTokens += b.OutputTokens
	a.costMicros += b.costMicros
	a.SQLDecisions += b.SQLDecisions
	a.Verifications += b.Verifications
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

var usageTypes = []string{string(event.TypeUsageRecorded), string(event.TypeTelemetryReceived), string(event.TypeRequestReceived), string(event.TypeToolVerified)}

// Usage adds up what the log says of a project's credentials or agents.
func (s *Service) Usage(ctx context.Context, c *Caller, q UsageQuery) (UsageBody, error) {
	u := usageWalk{caller: c, query: &q, buckets: map[usageBucket]*UsageSums{}}
	body := UsageBody{Items: []UsageItem{}, Totals: new(UsageSums), RateLimit: s.rate(c)}
	err := s.view(func(view *projections.View) error {
		body.AsOfSeq = view.Applied().Seq
		return nil
	})
	if err != nil {
		return body, err
	}
	f := projections.AuditFilter{EventTypes: usageTypes, Project: c.Project, AgentID: c.agentOnly(), ToSeq: body.AsOfSeq,
		Since: q.Since, Until: q.Until.Add(usageLag)}
	if err := s.eachEvent(ctx, f, u.take); err != nil {
		return body, err
	}
	if len(u.buckets) > maxUsageItems {
		return body, InvalidFields(FieldError{"/interval", fmt.Sprintf("gives %d items, and at most 1000 are told at once: ask for less time or for days", len(u.buckets))})
	}
	for _, b := range u.order() {
		sums := u.buckets[b]
		sums.CostUSD = Dollars(sums.costMicros)
		start := time.Unix(0, b.start).UTC()
		body.Items = append(body.Items, UsageItem{Start: event.Timestamp(start), End: event.Timestamp(start.Add(q.Interval)), Group: map[string]string{q.groupName(): b.group}, UsageSums: sums})
		body.Totals.plus(sums)
	}
	body.Totals.CostUSD = Dollars(body.Totals.costMicros)
	return body, nil
}

// usageLag is how long after its minute a usage_recorded may be written.
const usageLag = 5 * time.Minute

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
	start int64
	group string
}

type usageWalk struct {
	caller  *Caller
	query   *UsageQuery
	buckets map[usageBucket]*UsageSums
}

// add counts for a group at a moment; a group without a name is not told.
func (u *usageWalk) add(at time.Time, group string, sums UsageSums) {
	if group == "" || at.Before(u.query.Since) || !at.Before(u.query.Until) {
		return
	}
	key := usageBucket{at.UTC().Truncate(u.query.Interval).UnixNano(), group}
	if u.buckets[key] == nil {
		u.buckets[key] = new(UsageSums)
	}
	u.buckets[key].plus(&sums)
}

// group picks the name under which something is counted.
func (u *usageWalk) group(credential, agent string) string {
	if only := u.caller.agentOnly(); only != "" && agent != only {
		return ""
	}
	if u.query.ByAgent {
		return agent
	}
	return credential
}

func (u *usageWalk) take(e *event.Envelope) error {
	credential := lastOf(credentialsOf(e.Payload))
	switch e.Type {
	case event.TypeRequestReceived:
		u.add(e.Time, u.group(credential, e.Context.AgentID), UsageSums{SQLDecisions: 1})
	case event.TypeToolVerified:
		u.add(e.Time, u.group(credential, e.Context.AgentID), UsageSums{Verifications: 1})
	case event.TypeUsageRecorded:
		var p event.UsageRecorded
		if err := p.Parse(e.Payload); err != nil {
			return err
		}
		for i := range p.Credentials {
			r := &p.Credentials[i]
			if u.query.ByAgent && !isToken(r.CredentialID) {
				continue // a request with both credentials is one of its agent's
			}
			u.add(time.Unix(0, p.Minute), u.group(r.CredentialID, r.AgentID), UsageSums{Requests: int64(r.Requests), Throttled: int64(r.Throttled), Errors: int64(r.Errors)})
		}
	case event.TypeTelemetryReceived:
		var p event.TelemetryReceived
		if err := p.Parse(e.Payload); err != nil {
			return err
		}
		for i := range p.Events {
			t := &p.Events[i]
			u.add(e.Time, u.group(credential, t.AgentID), UsageSums{TelemetryEvents: 1, InputTokens: t.Usage.InputTokens, OutputTokens: t.Usage.OutputTokens, costMicros: t.Usage.CostMicros})
		}
	}
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
