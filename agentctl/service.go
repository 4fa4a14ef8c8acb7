package agentctl

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"time"

	"writegate/agentctl/issuer"
	"writegate/commands"
	"writegate/commands/fault"
	"writegate/eventlog/event"
	"writegate/projections"
)

// A Log gives single events of the event log.
type Log interface {
	// AtCost also tells how many bytes were read for it.
	AtCost(ctx context.Context, seq uint64) (e event.Envelope, read int64, err error)
}

// Options are what a Service stands on. Commands, Store, Log, Keys and Tools are required.
type Options struct {
	Commands *commands.Commands
	Store    *projections.Store
	Log      Log
	Keys     *ProjectKeys
	Tools    *ToolGuard
	Issuer   *issuer.Issuer   // of JWTs that agents may show; nil = none are taken
	Now      func() time.Time // time.Now
	Logger   *slog.Logger     // discards
}

// A Service answers for agents. All methods may be called from any goroutine.
type Service struct {
	Options
	limits    *limiter
	uses      *uses
	meters    *meters
	folding   *turns // of telemetry
	asking    *turns // of rules about telemetry
	looking   *turns // of previews
	applying  *turns // of changes of what binds agents
	holding   *turns // of compiled policies, by their memory
	verifying *turns // of verifications of tools
	compiled  *ruleCache

	// flushing keeps counters from moving into the log while a meter adds up
	// both: what is in neither, or in both, would make a wrong figure.
	flushing sync.RWMutex

	shared changes // of policies and tools, which more than one agent's decisions read
}

// New makes a service. Restore fills its counters from the log.
func New(o Options) (*Service, error) {
	if o.Commands == nil || o.Store == nil || o.Log == nil || o.Keys == nil || o.Tools == nil {
		return nil, errors.New("agentctl: commands, store, log, project keys and tools are required")
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	rules, err := newRuleCache()
	if err != nil {
		return nil, err
	}
	return &Service{Options: o, limits: newLimiter(), uses: newUses(), meters: newMeters(), folding: newTurns(telemetryOfOne), asking: newTurns(stepsOfOne), looking: newTurns(previewsOfOne), applying: newTurns(changesOfOne), holding: newTurns(maxCompiledMemory), verifying: newTurns(verificationsOfOne), compiled: rules}, nil
}

// An Asker is a caller with one request that writes.
type Asker struct {
	Caller
	RequestID string
	IfMatch   string // "" = the last writer wins
	Key       *Key   // nil = no Idempotency-Key
}

// A Key is an Idempotency-Key and what it is bound to (spec/v1.md part 1).
type Key struct {
	Text    string
	Scope   [32]byte // over project, method, path, key and caller
	Request [32]byte // SHA-256 of the request's body and query
}

// An Answer is what a request under /v1 is answered with.
type Answer struct {
	Status   int
	Body     any
	Location string // of what was made; "" = nothing was
	Revision int    // becomes the ETag; 0 = none
	Events   []commands.EventRef
}

// A plan is what a request comes to: its answer, and the events that make it true.
type plan struct {
	answer  Answer
	kept    any  // the body that the key keeps: without secrets; nil = the answer's own
	rebuilt bool // the records hold all of the body: it is not kept twice
	events  []pending
	after   func([]commands.EventRef) // fills in what only the append tells
}

// A pending event is one without the marks that all events of a request share.
type pending struct {
	agentID   string
	operation string
	payload   event.Originated
}

// write decides a request under the locks of its aggregates, appends its events
// and gives its answer.
func (s *Service) write(ctx context.Context, by *Asker, keys []string, decide func(*projections.View, time.Time) (plan, error)) (Answer, error) {
	return s.writeWithin(ctx, by, keys, nil, decide)
}

// writeShared is write of what the rules of more than one agent may read.
func (s *Service) writeShared(ctx context.Context, by *Asker, keys []string, decide func(*projections.View, time.Time) (plan, error)) (Answer, error) {
	return s.writeWithin(ctx, by, keys, func(write func() error) error { return s.shared.change(by.Project, write) }, decide)
}

// writeWithin decides and appends under the locks of keys and of the agent who asks: a
// token that was revoked since the request's head came changes nothing.
func (s *Service) writeWithin(ctx context.Context, by *Asker, keys []string, around func(func() error) error, decide func(*projections.View, time.Time) (plan, error)) (Answer, error) {
	var p plan
	if by.TokenID != "" {
		keys = append(keys, commands.AgentKey(by.Project, by.AgentID))
	}
	recorded, err := s.Commands.Change(ctx, commands.Change{Keys: keys, Around: around, Decide: func(view *projections.View, now time.Time) (drafts []event.Draft, err error) {
		if err := by.stands(view, now); err != nil {
			return nil, err
		}
		if p, err = decide(view, now); err != nil {
			return nil, err
		}
		return by.drafts(&p, now)
	}})
	if err != nil {
		return Answer{}, err
	}
	p.answer.Events = recorded.Events
	if p.after != nil && len(recorded.Events) > 0 {
		p.after(recorded.Events)
	}
	return p.answer, nil
}

// drafts gives the events their origin; the first one keeps the answer.
func (by *Asker) drafts(p *plan, now time.Time) ([]event.Draft, error) {
	drafts := make([]event.Draft, len(p.events))
	for i, e := range p.events {
		origin := e.payload.From()
		origin.CredentialIDs = by.CredentialIDs()
		if i == 0 && by.Key != nil {
			kept, err := by.keeps(p, now)
			if err != nil {
				return nil, err
			}
			origin.Idempotency = kept
		}
		drafts[i] = event.New(now, event.Context{Operation: e.operation, RequestID: by.RequestID, AgentID: e.agentID, Project: by.Project}, e.payload)
	}
	return drafts, nil
}

func (by *Asker) keeps(p *plan, now time.Time) (*event.KeptAnswer, error) {
	body := p.kept
	if body == nil {
		body = p.answer.Body
	}
	text, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	if p.rebuilt {
		text = nil
	}
	return &event.KeptAnswer{Key: by.Key.Text, ScopeDigest: by.Key.Scope, RequestSHA256: by.Key.Request,
		ExpiresAt: now.Add(commands.KeyLifetime).UnixNano(), Status: p.answer.Status, Body: string(text)}, nil
}

// matchRevision holds If-Match against the revision that there is.
func (by *Asker) matchRevision(revision int) error {
	if by.IfMatch == "" {
		return nil
	}
	for tag := range strings.SplitSeq(by.IfMatch, ",") {
		if tag = strings.TrimSpace(tag); tag == "*" || tag == strconv.Quote(strconv.Itoa(revision)) {
			return nil
		}
	}
	return fault.New(fault.RevisionMismatch, "It was changed meanwhile: it is at revision %d. Read it again, and send the change with its ETag.", revision).With("revision", revision)
}

// A FieldError is one thing that is wrong with a body.
type FieldError struct {
	Pointer string `json:"pointer"`
	Message string `json:"message"`
}

// maxFieldErrors is how many are told: a list may have as many elements as a body holds.
const maxFieldErrors = 100

// fieldErrors gathers them, so that they come at once.
type fieldErrors []FieldError

func (f *fieldErrors) add(bad bool, pointer, message string) {
	if bad && len(*f) < maxFieldErrors {
		*f = append(*f, FieldError{pointer, message})
	}
}

func (f fieldErrors) fault() error {
	if len(f) == 0 {
		return nil
	}
	return fault.New(fault.ValidationFailed, "The request is not valid; details.fields says what to change.").With("fields", []FieldError(f))
}

// InvalidFields is validation_failed for named fields or parameters.
func InvalidFields(fields ...FieldError) error { return fieldErrors(fields).fault() }

// view hands a consistent look to read, which it waits for no longer than ctx; its error is a fault.
func (s *Service) view(ctx context.Context, read func(*projections.View) error) error {
	view := s.Store.ViewWithin(ctx)
	err := errors.Join(read(view), view.Close())
	if err != nil {
		return faultOf(err)
	}
	return nil
}

func faultOf(err error) error {
	switch {
	case errors.Is(err, projections.ErrCursor):
		return fault.New(fault.CursorInvalid, "The cursor does not belong to this list with these filters and this order. Begin again without it.").Because(err)
	case errors.Is(err, projections.ErrNotConnected):
		return fault.New(fault.AuditCorruptionDetected, "The event log and its index contradict each other, so nothing is shown from them. GET /evidence/verify shows the damage.").Because(err)
	}
	return commands.ViewFault(err)
}
