package sqlgate

import (
	"context"
	"slices"

	"writegate/commands/fault"
)

// Steps that stand behind the startup chain where they are enforced
// (design/execution-and-wire.md part 8): the database's side of the protection.
// Unlike the chain's own they may fail and pass again at any time.
const (
	StepDatabaseRole  = "database_role"
	StepPGHBA         = "pg_hba_baseline"
	StepOutcomeMarker = "outcome_marker"
)

// guard puts a step behind the chain, or another state in its place. It reports
// whether the step failed now, and had not failed in these words before.
func (c *Chain) guard(state StepState) (news bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := slices.IndexFunc(c.guards, func(s StepState) bool { return s.Step == state.Step })
	if i < 0 {
		c.guards = append(c.guards, state)
		return state.Status == StepFailed
	}
	before := c.guards[i]
	c.guards[i] = state
	return state.Status == StepFailed && before != state
}

// guardFailure is the first guard that failed; the caller holds the lock.
func (c *Chain) guardFailure() *ChainFailure {
	for _, s := range c.guards {
		if s.Status == StepFailed {
			return &ChainFailure{Step: s.Step, Message: s.Message, code: fault.DBUnavailable}
		}
	}
	return nil
}

// walked is what the last walk of the chain found, whatever the guards say.
func (c *Chain) walked() *ChainFailure {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.failure
}

// Guard says how an enforced step of the database's side stands: StepOK,
// StepFailed, or StepPending where nothing is known yet, which keeps nobody out
// by itself. While one failed, no statement is accepted; that it failed is evidence.
func (g *Gate) Guard(ctx context.Context, step, status, message string) {
	if g.chain.guard(StepState{Step: step, Status: status, Message: message}) {
		g.recordFailure(ctx, &ChainFailure{Step: step, Message: message, code: fault.DBUnavailable})
	}
}
