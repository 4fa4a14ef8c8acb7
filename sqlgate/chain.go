package sqlgate

import (
	"slices"
	"sync"

	"writegate/commands"
	"writegate/commands/fault"
	"writegate/sqlgate/policy"
)

// Steps of the startup chain, in order (spec/gate.md part 1.12).
const (
	StepAuditLog         = "audit_log_continuity"
	StepManifest         = "manifest_validation"
	StepPolicyHash       = "policy_hash_match"
	StepPolicyValidation = "policy_validation"
	StepCorpus           = "activation_dry_run_corpus"
)

var chainSteps = []string{StepAuditLog, StepManifest, StepPolicyHash, StepPolicyValidation, StepCorpus}

// Statuses of a step.
const (
	StepOK      = "ok"
	StepFailed  = "failed"
	StepPending = "pending" // an earlier step failed, so this one was not tried
)

// A StepState is one step of the chain as GET /health shows it.
type StepState struct {
	Step    string `json:"step"`
	Status  string `json:"status"`
	Message string `json:"message"`
}

// A ChainFailure says which step failed, and why.
type ChainFailure struct {
	Step     string           `json:"step"`
	Message  string           `json:"message"`
	Findings []policy.Finding `json:"findings,omitempty"`
	code     fault.Code
	verdict  *commands.PolicyVerdict // of a version in the log that did not pass; nil for any other step
}

// Chain is the state of the startup chain. Until every step passed, no
// statement is accepted: there is no permissive fallback.
type Chain struct {
	mu      sync.Mutex // guards what follows
	steps   []StepState
	failure *ChainFailure
	guards  []StepState // what is enforced beside the chain

	auditFailed bool
}

func newChain() *Chain {
	c := &Chain{failure: &ChainFailure{Message: "The startup chain has not run yet.", code: fault.PolicyNotLoaded}}
	c.steps = make([]StepState, len(chainSteps))
	for i, name := range chainSteps {
		c.steps[i] = StepState{Step: name, Status: StepPending}
	}
	return c
}

// pass notes that a step is all right.
func (c *Chain) pass(step, message string) {
	c.set(step, StepOK, message)
	if step == chainSteps[len(chainSteps)-1] {
		c.mu.Lock()
		c.failure = nil
		c.mu.Unlock()
	}
}

// take puts a finished walk in the place of what was known, unless the event
// log failed in the meantime.
func (c *Chain) take(walk *Chain) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.auditFailed {
		return
	}
	c.steps, c.failure = walk.steps, walk.failure
}

// fail ends the chain at a step.
func (c *Chain) fail(f *ChainFailure) {
	c.set(f.Step, StepFailed, f.Message)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failure = f
}

func (c *Chain) set(step, status, message string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := slices.Index(chainSteps, step)
	c.steps[i] = StepState{Step: step, Status: status, Message: message}
}

// AuditFailed ends the protection while the gate runs: the log was found
// damaged, or cannot be written.
func (c *Chain) AuditFailed(code fault.Code, message string) {
	c.mu.Lock()
	c.auditFailed = true
	c.mu.Unlock()
	c.fail(&ChainFailure{Step: StepAuditLog, Message: message, code: code})
}

// Steps are the steps in order.
func (c *Chain) Steps() []StepState {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Concat(c.steps, c.guards)
}

// Failure is what keeps the gate from protecting, nil when nothing does.
func (c *Chain) Failure() *ChainFailure {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failure != nil {
		return c.failure
	}
	return c.guardFailure()
}

// Failed reports whether any step failed or was not reached.
func (c *Chain) Failed() bool { return c.Failure() != nil }

// fault is the answer to every statement while the chain is not ok.
func (c *Chain) fault() *fault.Fault {
	f := c.Failure()
	if f == nil {
		return fault.New(fault.PolicyNotLoaded, "No policy is loaded. See GET /policy/status.")
	}
	return fault.New(f.code, "The gate protects nothing at the moment, so it runs nothing: the startup step %s failed (%s). Mend that first; GET /health shows every step.", f.Step, f.Message).With("step", f.Step)
}
