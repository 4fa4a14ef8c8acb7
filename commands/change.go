package commands

import (
	"context"
	"time"

	"writegate/eventlog"
	"writegate/eventlog/event"
	"writegate/projections"
)

// A Change is a command whose rules live in a room above this one: agents, their
// policies, telemetry and tools. It goes the way of every command: its
// aggregates are locked, it is decided against the view, its events are
// appended as one group and applied before the locks are given back.
type Change struct {
	Keys []string // aggregates, as AgentKey and so on name them
	// Decide must depend on nothing but the view, the moment and the command. No
	// drafts is an answer too: there is nothing to change.
	Decide func(view *projections.View, now time.Time) ([]event.Draft, error)
	// Around is that of RecordDecision.
	Around func(write func() error) error
}

// Change carries a change out. Its errors are those of Decide and of the log,
// as faults.
func (c *Commands) Change(ctx context.Context, ch Change) (Recorded, error) {
	unlock, err := c.lock(ctx, ch.Keys...)
	if err != nil {
		return Recorded{}, err
	}
	defer unlock()
	now := c.now()
	var drafts []event.Draft
	err = c.look(ctx, func(view *projections.View) (err error) {
		c.step("commands.decide")
		drafts, err = ch.Decide(view, now)
		return err
	})
	if err != nil || len(drafts) == 0 {
		return Recorded{}, err
	}
	done, err := c.commitWithin(ctx, eventlog.Group{Drafts: drafts}, ch.Around)
	if err != nil {
		return Recorded{}, err
	}
	return Recorded{Events: refs(drafts, done)}, nil
}

// RecordUsage writes what credentials used. It is taken from the log's reserve,
// so that a clean stop loses none of it.
func (c *Commands) RecordUsage(ctx context.Context, drafts []event.Draft) error {
	if len(drafts) == 0 {
		return nil
	}
	_, err := c.commit(ctx, eventlog.Group{Drafts: drafts, Reserve: true})
	return err
}

// The aggregates of /v1. They carry the project: an id comes from a client, and one
// that belongs to another project locks nothing there.

// AgentKey is the aggregate of an agent, its tokens and its applications.
func AgentKey(project, id string) string { return "agent/" + project + "/" + id }

// AgentPolicyKey is the aggregate of a policy for agents.
func AgentPolicyKey(project, id string) string { return "agentpolicy/" + project + "/" + id }

// ToolKey is the aggregate of a tool.
func ToolKey(project, id string) string { return "tool/" + project + "/" + id }
