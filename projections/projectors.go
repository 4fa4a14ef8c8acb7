package projections

import "writegate/eventlog/event"

// A projector folds events of one type in one version.
type projector struct {
	version uint16
	apply   func(*tx, *event.Envelope) error // nil = the event is indexed alone
}

// indexed is for types that change no record: they are found by their filters.
var indexed = projector{version: 1}

// projectors is the one table of what events mean. A test holds it against
// event.Types, so that a new type can't be forgotten.
var projectors = map[event.Type]projector{
	event.TypeStartup:                 {1, fold(startup)},
	event.TypeShutdown:                indexed,
	event.TypeLogTailRecovered:        indexed,
	event.TypeLogFenceTaken:           indexed,
	event.TypeCheckpointSigned:        indexed,
	event.TypeHealthFail:              indexed,
	event.TypeAuditCorruptionDetected: indexed,
	event.TypeDBUnavailable:           indexed,
	event.TypeRateLimitHit:            indexed,
	event.TypeOversizedRequest:        indexed,
	event.TypeOperatorAuthFailed:      indexed,
	event.TypeWireLoginFailed:         indexed,
	event.TypeEvidenceExported:        indexed,
	event.TypeCatalogRecorded:         {1, fold(catalogRecorded)},
	event.TypeRequestReceived:         {1, requestReceived},
	event.TypeQueryRejected:           {1, fold(queryRejected)},
	event.TypeDecisionRecorded:        {1, agentDecided},
	event.TypeEmergencyBypass:         indexed,
	event.TypeSessionOpened:           indexed,
	event.TypeSessionClosed:           indexed,
	event.TypeCancelReceived:          indexed,
	event.TypeCancelForwarded:         indexed,
	event.TypeCancelRejected:          indexed,
	event.TypeCancelUnsent:            indexed,
	event.TypeReadFenceViolation:      {1, fold(readFenceViolation)},

	event.TypePolicyLoaded:            {1, fold(policyLoaded)},
	event.TypePolicyValidated:         {1, fold(policyValidated)},
	event.TypePolicyActivated:         {1, fold(policyActivated)},
	event.TypePolicyRollback:          {1, fold(policyRollback)},
	event.TypePolicyCandidateCreated:  {1, fold(policyCandidateCreated)},
	event.TypePolicyCandidateRejected: {1, fold(policyCandidateRejected)},

	event.TypeApprovalCreated:  {1, fold(approvalCreated)},
	event.TypeApprovalResolved: {1, fold(approvalResolved)},
	event.TypeApprovalExpired:  {1, fold(approvalExpired)},
	event.TypeApprovalUsed:     {1, fold(approvalUsed)},
	event.TypeApprovalsPurged:  {1, fold(approvalsPurged)},

	event.TypeGrantCreated: {1, fold(kept(grantCreated))},
	event.TypeGrantUsed:    {1, fold(grantUsed)},
	event.TypeGrantRevoked: {1, fold(grantRevoked)},
	event.TypeGrantExpired: {1, fold(grantExpired)},

	event.TypeExecutionDispatched:      {1, executionDispatched},
	event.TypeExecutionSuccess:         {1, executionSuccess},
	event.TypeExecutionFailure:         {1, fold(executionFailure)},
	event.TypeExecutionStateUnknown:    {1, fold(executionStateUnknown)},
	event.TypeExecutionOutcomeResolved: {1, fold(executionOutcomeResolved)},

	event.TypeAgentRegistered:     {1, fold(kept(agentRegistered))},
	event.TypeAgentUpdated:        {1, fold(kept(agentUpdated))},
	event.TypeAgentDeactivated:    {1, fold(kept(agentDeactivated))},
	event.TypeAgentTokenIssued:    {1, fold(kept(agentTokenIssued))},
	event.TypeAgentTokenRevoked:   {1, fold(kept(agentTokenRevoked))},
	event.TypeAgentSubjectBound:   {1, fold(agentSubjectBound)},
	event.TypeAgentSubjectUnbound: {1, fold(agentSubjectUnbound)},
	event.TypeAgentPolicyCreated:  {1, fold(kept(agentPolicyCreated))},
	event.TypeAgentPolicyUpdated:  {1, fold(kept(agentPolicyUpdated))},
	event.TypeAgentPolicyApplied:  {1, fold(kept(agentPolicyApplied))},
	event.TypeAgentPolicyDetached: {1, fold(kept(agentPolicyDetached))},
	event.TypeTelemetryReceived:   {1, fold(kept(telemetryReceived))},
	event.TypeUsageRecorded:       {1, fold(usageRecorded)},
	event.TypeToolRegistered:      {1, fold(kept(toolRegistered))},
	event.TypeToolUpdated:         {1, fold(kept(toolUpdated))},
	event.TypeToolVerified:        {1, fold(kept(toolVerified))},
}

// fold gives a projector its event's payload as a Go struct.
func fold[P any, T interface {
	*P
	event.Typed
}](apply func(*tx, *event.Envelope, T)) func(*tx, *event.Envelope) error {
	return func(t *tx, e *event.Envelope) error {
		p := T(new(P))
		if err := e.Parse(p); err != nil {
			return err
		}
		apply(t, e, p)
		return nil
	}
}
