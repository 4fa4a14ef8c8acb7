package agentapi

import (
	"context"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"writegate/agentctl"
	"writegate/commands/fault"
	"writegate/eventlog/event"
	"writegate/http/httpd"
)

// streamBeat is how often a quiet stream says that it lives, maxStreams how many
// clients may follow at once, and maxProjectStreams how many of one project.
const (
	streamBeat        = 15 * time.Second
	maxStreams        = 100
	maxProjectStreams = 75
)

var eventFilters = []string{"telemetry_type", "agent_id", "policy_id", "tool_id", "session_id", "request_id", "credential_id", "since", "until", "from_seq", "to_seq"}

// listEvents is GET /v1/events: a page of the agent view, or the log as it comes.
func (a *api) listEvents(c *call) error {
	query, page, err := c.List(eventFilters...)
	if err != nil {
		return asList(err)
	}
	f, err := eventFilter(query)
	if err != nil {
		return err
	}
	if last, ok := a.Reaches(f.FromSeq); !ok { // of a stream too: it is a filter beside Last-Event-ID
		return ofAnotherLog("/from_seq", last+1, last)
	}
	if strings.HasPrefix(c.Request.Header.Get("Accept"), "text/event-stream") {
		return a.streamEvents(c, f)
	}
	list := c.NewList()
	events, err := a.Agents.Events(c.Request.Context(), &c.caller, f, agentctl.EventPage{Limit: page.Limit, Cursor: page.Cursor, Asc: page.Asc}, list.AddJSON)
	if err != nil {
		return err
	}
	head := strconv.AppendUint([]byte(`,"head":{"seq":`), events.HeadSeq, 10)
	list.Send(events.Next, append(event.AppendHash(append(head, `,"hash":`...), events.HeadHash), '}')...)
	return nil
}

// eventFilter reads the filters of spec/v1.md part 9.
func eventFilter(q url.Values) (agentctl.EventFilter, error) {
	f := agentctl.EventFilter{Types: slices.DeleteFunc(slices.Clone(q["event_type"]), func(s string) bool { return s == "" }),
		TelemetryType: q.Get("telemetry_type"), AgentID: q.Get("agent_id"), PolicyID: q.Get("policy_id"), ToolID: q.Get("tool_id"),
		SessionID: q.Get("session_id"), RequestID: q.Get("request_id"), CredentialID: q.Get("credential_id")}
	var fields []agentctl.FieldError
	for _, m := range []struct {
		name string
		dst  *time.Time
	}{{"since", &f.Since}, {"until", &f.Until}} {
		t, err := httpd.Moment(q.Get(m.name))
		if *m.dst = t; err != nil {
			fields = append(fields, agentctl.FieldError{Pointer: "/" + m.name, Message: "must be a moment like 2026-01-31T18:00:00Z"})
		}
	}
	for _, n := range []struct {
		name string
		dst  *uint64
	}{{"from_seq", &f.FromSeq}, {"to_seq", &f.ToSeq}} {
		text := q.Get(n.name)
		if text == "" {
			continue
		}
		seq, err := strconv.ParseUint(text, 10, 63)
		if *n.dst = seq; err != nil || seq == 0 {
			fields = append(fields, agentctl.FieldError{Pointer: "/" + n.name, Message: "must be a whole number from 1"})
		}
	}
	return f, agentctl.InvalidFields(fields...)
}

// streamEvents follows the log (HTML, part 9.2), from Last-Event-ID on.
func (a *api) streamEvents(c *call, f agentctl.EventFilter) error {
	if err := c.caller.CheckFilter(f); err != nil {
		return err
	}
	after := agentctl.Place{Seq: a.Head(), Index: -1}
	if f.FromSeq > 0 {
		after.Seq = f.FromSeq - 1
	}
	if text := c.Request.Header.Get("Last-Event-ID"); text != "" {
		seq, index, ok := strings.Cut(text, ".")
		s, errSeq := strconv.ParseUint(seq, 10, 63)
		i, errIndex := strconv.ParseUint(index, 10, 31)
		if !ok || errSeq != nil || errIndex != nil {
			return agentctl.InvalidFields(agentctl.FieldError{Pointer: "/Last-Event-ID", Message: "must be the id of an item of this stream"})
		}
		after = agentctl.Place{Seq: s, Index: int(min(i, math.MaxInt32))}
		if last, ok := a.Reaches(s + 1); !ok {
			return ofAnotherLog("/Last-Event-ID", last, last)
		}
	}
	leave, _, ok := a.projectStreams.Take(c.caller.Project)
	if !ok {
		return fault.New(fault.RateLimitExceeded, "Your project has %d streams of the log at once, and may have no more. Try again when one has ended.", maxProjectStreams).With("retry_after_seconds", 10)
	}
	defer leave()
	release, own, ok := a.streams.Take(c.caller.Holder())
	switch {
	case own:
		return fault.New(fault.RateLimitExceeded, "This key or agent has %d streams of the log at once, and may have no more. Try again when one has ended.", a.streams.Each()).With("retry_after_seconds", 10)
	case !ok:
		return fault.New(fault.RateLimitExceeded, "%d clients follow the log already, and no more may at once. Try again when one has left.", maxStreams).With("retry_after_seconds", 10)
	}
	defer release()
	ctx, cancel := context.WithCancel(c.Request.Context())
	defer cancel()
	defer context.AfterFunc(a.Stopping, cancel)()
	go func() { // a filter may find nothing for long, and the stream keep its place
		for beat := time.NewTicker(streamBeat); ; {
			select {
			case <-ctx.Done():
				beat.Stop()
				return
			case <-beat.C:
				if a.good(c) != nil {
					cancel()
				}
			}
		}
	}()
	return c.Events(ctx, streamBeat, func(send func(id, kind string, data []byte) error) error {
		return a.Agents.Follow(ctx, &c.caller, f, a.Follower, after, a.whileGood(c, send))
	})
}

// ofAnotherLog refuses a place that the log, which ends with last, does not have:
// whoever waited there would miss, and not know it, what the log gets up to there.
func ofAnotherLog(pointer string, most, last uint64) error {
	return fault.Of(agentctl.InvalidFields(agentctl.FieldError{Pointer: pointer, Message: httpd.OfAnotherLog(most)})).With("last_seq", last)
}

// good refuses a call whose credential ended meanwhile, or speaks for somebody else by now.
func (a *api) good(c *call) error {
	caller, err := a.Agents.Authenticate(c.Request.Context(), c.Bearer(), c.Request.Header.Get("X-Api-Key"))
	if err == nil && (caller.AgentID != c.caller.AgentID || caller.Project != c.caller.Project) {
		err = fault.New(fault.TokenRevoked, "The credential speaks for another agent now. Connect again.")
	}
	return err
}

// whileGood ends a stream with the first item after its credential ended:
// nothing outlives a revocation.
func (a *api) whileGood(c *call, send func(id, kind string, data []byte) error) func(id, kind string, data []byte) error {
	return func(id, kind string, data []byte) error {
		if err := a.good(c); err != nil {
			return err
		}
		return send(id, kind, data)
	}
}

// getEvent is GET /v1/events/:event_id.
func (a *api) getEvent(c *call) error {
	body, err := a.Agents.Event(c.Request.Context(), &c.caller, c.Params.ByName("event_id"))
	if err != nil {
		return err
	}
	c.Raw(http.StatusOK, append(body, '\n'))
	return nil
}

// Spans that GET /v1/usage looks back without since.
const (
	hoursBack = 24 * time.Hour
	daysBack  = 30 * 24 * time.Hour
)

// usage is GET /v1/usage.
func (a *api) usage(c *call) error {
	query, err := c.Query("since", "until", "interval", "group_by")
	if err != nil {
		return asList(err)
	}
	q := agentctl.UsageQuery{ByAgent: query.Get("group_by") == "agent_id"}
	if group := query.Get("group_by"); group != "" {
		if err := oneOf("group_by", group, "credential_id", "agent_id"); err != nil {
			return err
		}
	}
	if q.Interval, err = agentctl.ParseInterval(query.Get("interval")); err != nil {
		return err
	}
	f, err := eventFilter(url.Values{"since": query["since"], "until": query["until"]})
	if err != nil {
		return err
	}
	if q.Since, q.Until = f.Since, f.Until; q.Until.IsZero() {
		q.Until = a.Now()
	}
	if q.Since.IsZero() {
		back := daysBack
		if q.Interval == time.Hour {
			back = hoursBack
		}
		q.Since = q.Until.Add(-back)
	}
	body, err := a.Agents.Usage(c.Request.Context(), &c.caller, q)
	if err != nil {
		return err
	}
	c.JSON(http.StatusOK, body)
	return nil
}
