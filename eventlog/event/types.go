package event

import (
	"errors"
	"fmt"
	"slices"
)

// A Typed is the payload of one event type as a Go struct. All of them are
// pointers. Fields may share memory with the struct's texts, never with its
// byte slices.
type Typed interface {
	// EventType names the type whose payload this is.
	EventType() Type
	// Fields gives the payload, sorted, with absent fields left out.
	Fields() Payload
	// Parse fills the struct from a payload that Fields could have given, and
	// refuses any other. The struct must be new. An event's payload is read by the
	// Parse of its Draft.
	Parse(Payload) error
	// form describes the payload in both directions.
	form(*form)
}

// A Spec is one event type in the version that is written today.
type Spec struct {
	Type    Type
	Version uint16
	New     func() Typed
}

// ErrUnknownType says that this program has no meaning for an event's type or
// version: it was written by a later one. Whoever folds events has to stop
// there and must not skip it.
var ErrUnknownType = errors.New("unknown event type or version")

// specs is the one table of event types, in the order in which a life of the
// service meets them.
var specs = []Spec{
	{TypeStartup, 1, func() Typed { return new(Startup) }},
	{TypeShutdown, 1, func() Typed { return new(Shutdown) }},
	{TypeLogTailRecovered, 1, func() Typed { return new(LogTailRecovered) }},
	{TypeLogFenceTaken, 1, func() Typed { return new(LogFenceTaken) }},
	{TypeCheckpointSigned, 1, func() Typed { return new(CheckpointSigned) }},
	{TypeHealthFail, 1, func() Typed { return new(HealthFail) }},
	{TypeAuditCorruptionDetected, 1, func() Typed { return new(AuditCorruptionDetected) }},
	{TypeDBUnavailable, 1, func() Typed { return new(DBUnavailable) }},
	{TypeRateLimitHit, 1, func() Typed { return new(RateLimitHit) }},
	{TypeOversizedRequest, 1, func() Typed { return new(OversizedRequest) }},
	{TypeOperatorAuthFailed, 1, func() Typed { return new(OperatorAuthFailed) }},
	{TypeWireLoginFailed, 1, func() Typed { return new(WireLoginFailed) }},
	{TypeEvidenceExported, 1, func() Typed { return new(EvidenceExported) }},

	{TypePolicyLoaded, 1, func() Typed { return new(PolicyLoaded) }},
	{TypePolicyValidated, 1, func() Typed { return new(PolicyValidated) }},
	{TypePolicyActivated, 1, func() Typed { return new(PolicyActivated) }},
	{TypePolicyRollback, 1, func() Typed { return new(PolicyRollback) }},
	{TypePolicyCandidateCreated, 1, func() Typed { return new(PolicyCandidateCreated) }},
	{TypePolicyCandidateRejected, 1, func() Typed { return new(PolicyCandidateRejected) }},

	{TypeCatalogRecorded, 1, func() Typed { return new(CatalogRecorded) }},
	{TypeRequestReceived, 1, func() Typed { return new(RequestReceived) }},
	{TypeQueryRejected, 1, func() Typed { return new(QueryRejected) }},
	{TypeDecisionRecorded, 1, func() Typed { return new(DecisionRecorded) }},
	{TypeEmergencyBypass, 1, func() Typed { return new(EmergencyBypass) }},

	{TypeApprovalCreated, 1, func() Typed { return new(ApprovalCreated) }},
	{TypeApprovalResolved, 1, func() Typed { return new(ApprovalResolved) }},
	{TypeApprovalExpired, 1, func() Typed { return new(ApprovalExpired) }},
	{TypeApprovalUsed, 1, func() Typed { return new(ApprovalUsed) }},
	{TypeApprovalsPurged, 1, func() Typed { return new(ApprovalsPurged) }},

	{TypeGrantCreated, 1, func() Typed { return new(GrantCreated) }},
	{TypeGrantUsed, 1, func() Typed { return new(GrantUsed) }},
	{TypeGrantRevoked, 1, func() Typed { return new(GrantRevoked) }},
	{TypeGrantExpired, 1, func() Typed { return new(GrantExpired) }},

	{TypeExecutionDispatched, 1, func() Typed { return new(ExecutionDispatched) }},
	{TypeExecutionSuccess, 1, func() Typed { return new(ExecutionSuccess) }},
	{TypeExecutionFailure, 1, func() Typed { return new(ExecutionFailure) }},
	{TypeExecutionStateUnknown, 1, func() Typed { return new(ExecutionStateUnknown) }},
	{TypeExecutionOutcomeResolved, 1, func() Typed { return new(ExecutionOutcomeResolved) }},
	{TypeReadFenceViolation, 1, func() Typed { return new(ReadFenceViolation) }},

	{TypeSessionOpened, 1, func() Typed { return new(SessionOpened) }},
	{TypeSessionClosed, 1, func() Typed { return new(SessionClosed) }},

	{TypeCancelReceived, 1, func() Typed { return new(CancelReceived) }},
	{TypeCancelForwarded, 1, func() Typed { return new(CancelForwarded) }},
	{TypeCancelRejected, 1, func() Typed { return new(CancelRejected) }},
	{TypeCancelUnsent, 1, func() Typed { return new(CancelUnsent) }},

	{TypeAgentRegistered, 1, func() Typed { return new(AgentRegistered) }},
	{TypeAgentUpdated, 1, func() Typed { return new(AgentUpdated) }},
	{TypeAgentDeactivated, 1, func() Typed { return new(AgentDeactivated) }},
	{TypeAgentTokenIssued, 1, func() Typed { return new(AgentTokenIssued) }},
	{TypeAgentTokenRevoked, 1, func() Typed { return new(AgentTokenRevoked) }},
	{TypeAgentSubjectBound, 1, func() Typed { return new(AgentSubjectBound) }},
	{TypeAgentSubjectUnbound, 1, func() Typed { return new(AgentSubjectUnbound) }},
	{TypeAgentPolicyCreated, 1, func() Typed { return new(AgentPolicyCreated) }},
	{TypeAgentPolicyUpdated, 1, func() Typed { return new(AgentPolicyUpdated) }},
	{TypeAgentPolicyApplied, 1, func() Typed { return new(AgentPolicyApplied) }},
	{TypeAgentPolicyDetached, 1, func() Typed { return new(AgentPolicyDetached) }},
	{TypeTelemetryReceived, 1, func() Typed { return new(TelemetryReceived) }},
	{TypeUsageRecorded, 1, func() Typed { return new(UsageRecorded) }},
	{TypeToolRegistered, 1, func() Typed { return new(ToolRegistered) }},
	{TypeToolUpdated, 1, func() Typed { return new(ToolUpdated) }},
	{TypeToolVerified, 1, func() Typed { return new(ToolVerified) }},
}

var specByType = func() map[Type]*Spec {
	m := make(map[Type]*Spec, len(specs))
	for i := range specs {
		m[specs[i].Type] = &specs[i]
	}
	return m
}()

// Types lists every event type this program knows.
func Types() []Spec { return slices.Clone(specs) }

// Lookup finds the spec of a type.
func Lookup(t Type) (Spec, bool) {
	s, ok := specByType[t]
	if !ok {
		return Spec{}, false
	}
	return *s, true
}

func versionOf(t Type) uint16 {
	if s, ok := specByType[t]; ok {
		return s.Version
	}
	return 0 // refused by Encode
}

// Open gives the payload of d as its Go struct. The error wraps ErrUnknownType
// when the type or its version is not known here.
func Open(d *Draft) (Typed, error) {
	s, ok := specByType[d.Type]
	if !ok || d.TypeVersion != s.Version {
		return nil, fmt.Errorf("%w: %s version %d", ErrUnknownType, d.Type, d.TypeVersion)
	}
	p := s.New()
	if err := d.Parse(p); err != nil {
		return nil, fmt.Errorf("payload of %s: %w", d.Type, err)
	}
	return p, nil
}
