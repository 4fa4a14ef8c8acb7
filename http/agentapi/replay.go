package agentapi

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	"writegate/agentctl"
	"writegate/commands"
	"writegate/commands/fault"
	"writegate/http/httpd"
	"writegate/projections"
)

// beginKey binds the request to its Idempotency-Key, or gives the kept answer.
func (a *api) beginKey(c *call, by *agentctl.Asker, body []byte) (lease *commands.KeyLease, replayed bool, err error) {
	keys := c.Request.Header.Values("Idempotency-Key")
	if len(keys) == 0 {
		return nil, false, nil
	}
	if len(keys) > 1 || !httpd.VisibleASCII(keys[0], 255) {
		return nil, false, agentctl.InvalidFields(agentctl.FieldError{Pointer: "/Idempotency-Key", Message: "must be one header of 1 to 255 visible ASCII characters"})
	}
	// The caller is part of it: without an agent_id a body means another thing for each token.
	key := &agentctl.Key{Text: keys[0], Scope: httpd.DigestOf("gate.v1.key", c.caller.Project, c.Request.Method, c.Request.URL.Path, keys[0], c.caller.KeyID, c.caller.AgentID),
		Request: httpd.DigestOf("gate.v1.request", c.Request.URL.RawQuery, string(body))}
	lease, first, err := a.Commands.BeginKey(c.Request.Context(), key.Scope, key.Request, a.Now())
	if f, ok := fault.As(err); ok && f.Code == fault.IdempotencyInProgress {
		return nil, false, f.With("retry_after_seconds", 1)
	}
	if err != nil {
		return nil, false, err
	}
	if first != nil {
		if err := a.good(c); err != nil { // nothing is written, so nothing else looks at it again
			return nil, false, err
		}
		return nil, true, a.replay(c, first)
	}
	by.Key = key
	return lease, false, nil
}

// replay gives a kept answer again. Where it stands in a log before this one
// there is no event to name.
func (a *api) replay(c *call, first *projections.IdempotencyRecord) error {
	view := a.Store.ViewWithin(c.Request.Context())
	seq := view.OwnSeq(first.Seq)
	if err := view.Close(); err != nil {
		return err
	}
	if first.Body == "" {
		return a.replayTelemetry(c, first, seq)
	}
	if err := a.replayed(c, seq); err != nil {
		return err
	}
	location, revision := made(c.Request.URL.Path, first)
	c.mark(location, revision)
	body := []byte(first.Body)
	if strings.HasSuffix(c.Request.URL.Path, "/apply") { // what only its append told is filled in again
		body = bytes.Replace(body, []byte(`"effective_from_seq":0`), fmt.Appendf(nil, `"effective_from_seq":%d`, seq), 1)
	}
	c.Raw(first.Status, append(body, '\n'))
	return nil
}

// made tells from a kept body where what was made lies, and its revision: the
// headers of the first answer are not kept beside it.
func made(path string, first *projections.IdempotencyRecord) (location string, revision int) {
	var body struct {
		ID          string
		TokenID     string `json:"token_id"`
		Application string `json:"application_id"`
		AgentID     string `json:"agent_id"`
		Revision    int
	}
	err := json.Unmarshal([]byte(first.Body), &body)
	switch {
	case err != nil || first.Status != http.StatusCreated:
	case body.Application != "":
		location = path + "?agent_id=" + body.AgentID
	case body.TokenID != "":
		location = path + "/" + body.TokenID
	default:
		location = path + "/" + body.ID
	}
	return location, body.Revision
}

// replayed sets the headers that lead to the evidence of an answer that is
// given again: to the last event of the request whose first one is at seq.
func (a *api) replayed(c *call, seq uint64) error {
	h := c.Writer().Header()
	h.Set("Idempotency-Replayed", "true")
	if seq == 0 {
		return nil
	}
	ctx := c.Request.Context()
	last, _, err := a.Log.AtCost(ctx, seq)
	if err != nil {
		return commands.ViewFault(err)
	}
	for next := last; next.Context.RequestID == last.Context.RequestID && next.Time.Equal(last.Time); { // one append, at one moment
		if last = next; last.Seq == a.Head() {
			break
		}
		if next, _, err = a.Log.AtCost(ctx, last.Seq+1); err != nil {
			return commands.ViewFault(err)
		}
	}
	setEvent(h, last.Seq, last.Hash)
	return nil
}
