package toolcheck

import (
	"context"
	"errors"
	"log/slog"
	"net/url"
	"sync"
	"time"

	"writegate/agentctl/egress"
	"writegate/sqlgate/classify"
)

// Limits of a verification, in the order of the contract.
const (
	DefaultTimeout = 5 * time.Second
	MinTimeout     = 500 * time.Millisecond
	MaxTimeout     = 10 * time.Second
	MaxRunning     = 8
	MaxSchemas     = 1 // that are checked at once
)

// Reasons why a verification does not begin.
var (
	ErrRunning       = errors.New("toolcheck: this tool is being verified")
	ErrBusy          = errors.New("toolcheck: as many verifications as may run are running, or other schemas go first")
	ErrNotVerifiable = errors.New("toolcheck: the tool has nothing that could be verified")
)

// MovedError means that the definition is not the one that a person accepts: it
// changed again since they looked.
type MovedError struct{ Current string }

func (e *MovedError) Error() string {
	return "toolcheck: the tool's fingerprint is " + e.Current + " now"
}

// A Checker verifies tools: one verification a tool at a time, MaxRunning in all.
// It is safe for concurrent use.
type Checker struct {
	guard   *egress.Guard
	secrets Secrets
	log     *slog.Logger
	places  chan struct{}
	schemas classify.Children

	mu      sync.Mutex
	running map[string]bool
}

// New makes a checker that goes where guard lets it. Close ends it.
func New(guard *egress.Guard, secrets Secrets, log *slog.Logger) *Checker {
	return &Checker{guard: guard, secrets: secrets, log: log, places: make(chan struct{}, MaxRunning), running: map[string]bool{}, schemas: schemaWork.Children(MaxSchemas)}
}

// Close ends the process that checks schemas. Afterwards none is checked.
func (c *Checker) Close() { c.schemas.Close() }

// Verify verifies the tool of this id. A target that fails is a Result; an error
// means that nothing was verified: ErrRunning, ErrBusy when no place came free
// within the timeout, ErrNotVerifiable, a *MovedError, or that ctx was cancelled.
func (c *Checker) Verify(ctx context.Context, id string, target Target, timeout time.Duration) (Result, error) {
	if target.Type == TypeFunction && len(target.InputSchema) == 0 && len(target.OutputSchema) == 0 {
		return Result{}, ErrNotVerifiable
	}
	if !c.begin(id) {
		return Result{}, ErrRunning
	}
	defer c.end(id)
	if err := c.takePlace(ctx, timeout); err != nil {
		return Result{}, err
	}
	defer func() { <-c.places }()

	started := time.Now()
	bounded, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	result, err := c.verify(bounded, target)
	if ctx.Err() != nil {
		return Result{}, context.Cause(ctx)
	}
	if errors.Is(err, context.DeadlineExceeded) { // a schema had no turn in the time of the verification
		return Result{}, ErrBusy
	}
	result.Latency = time.Since(started)
	return result, err
}

func (c *Checker) begin(id string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.running[id] {
		return false
	}
	c.running[id] = true
	return true
}

func (c *Checker) end(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.running, id)
}

func (c *Checker) takePlace(ctx context.Context, patience time.Duration) error {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case c.places <- struct{}{}:
		return nil
	case <-timer.C:
		return ErrBusy
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (c *Checker) verify(ctx context.Context, target Target) (Result, error) {
	var r run
	if target.Type == TypeFunction {
		return c.verifyFunction(ctx, r, target)
	}
	u, credential, refusal := c.mayGo(target)
	if refusal != nil {
		return r.refused(StepURL, refusal), nil
	}
	r.pass(Step{Name: StepURL})
	if target.Type == TypeHTTP {
		return c.verifyHTTP(ctx, r, target, u, credential), nil
	}
	return c.verifyMCP(ctx, r, target, u, credential)
}

// mayGo judges the URL and finds the credential for it, before anything is sent.
func (c *Checker) mayGo(target Target) (*url.URL, egress.Credential, *egress.Refusal) {
	read := c.guard.ParseURL
	if target.Type == TypeHTTP {
		read = func(string) (*url.URL, error) { return ProbeURL(c.guard, target) }
	}
	u, err := read(target.URL)
	if err != nil {
		var refusal *egress.Refusal
		if !errors.As(err, &refusal) {
			refusal = &egress.Refusal{Code: egress.URLForbidden, Why: "The URL cannot be read."}
		}
		return nil, egress.Credential{}, refusal
	}
	credential, refusal := c.secrets.credential(target.Auth, u)
	return u, credential, refusal
}

// verifyFunction has only the schemas to look at.
func (c *Checker) verifyFunction(ctx context.Context, r run, target Target) (Result, error) {
	for _, schema := range [][]byte{target.InputSchema, target.OutputSchema} {
		if len(schema) == 0 {
			continue
		}
		why, err := c.CheckSchema(ctx, target.Client, schema)
		if err != nil {
			return Result{}, err
		}
		if why != "" {
			return r.fail(Step{Name: StepSchema}, SchemaMismatch, "A declared schema is no JSON Schema."), nil
		}
	}
	r.pass(Step{Name: StepSchema})
	return r.passed(Definition{}), nil
}
