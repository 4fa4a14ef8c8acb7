package agentctl

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"net/http"
	"regexp"
	"time"

	"writegate/agentctl/toolcheck"
	"writegate/commands"
	"writegate/commands/fault"
	"writegate/eventlog/event"
	"writegate/projections"
)

// verificationLasts is how long a verification that passed is good for.
const verificationLasts = 24 * time.Hour

// VerifyInput is the body of POST /v1/tools/:id/verify.
type VerifyInput struct {
	TimeoutMS         *int    `json:"timeout_ms"`
	AcceptFingerprint *string `json:"accept_fingerprint"`
}

var hexHash = regexp.MustCompile(`^[0-9a-f]{64}$`)

func (in *VerifyInput) check() (timeout time.Duration, err error) {
	var f fieldErrors
	timeout = toolcheck.DefaultTimeout
	if in.TimeoutMS != nil {
		timeout = time.Duration(*in.TimeoutMS) * time.Millisecond
		f.add(*in.TimeoutMS < int(toolcheck.MinTimeout/time.Millisecond) || *in.TimeoutMS > int(toolcheck.MaxTimeout/time.Millisecond), "/timeout_ms", "must be from 500 to 10000")
	}
	f.add(in.AcceptFingerprint != nil && !hexHash.MatchString(*in.AcceptFingerprint), "/accept_fingerprint", "must be a fingerprint: 64 hexadecimal digits in lower case")
	return timeout, f.fault()
}

// VerifyTool is POST /v1/tools/:id/verify. A tool that fails is an answer; an
// error means that nothing was verified.
//
// Errors besides those of every write: tool_not_found, tool_disabled,
// tool_not_verifiable, verification_in_progress, fingerprint_changed,
// revision_mismatch when the tool was changed meanwhile.
func (s *Service) VerifyTool(ctx context.Context, by *Asker, id string, in *VerifyInput) (Answer, error) {
	timeout, err := in.check()
	if err != nil {
		return Answer{}, err
	}
	if in.AcceptFingerprint != nil && !by.Caller.whole { // that is for a person to judge, not for whom it binds
		return Answer{}, fault.New(fault.InsufficientScope, "An agent does not accept what changed in its tool. Send accept_fingerprint with a project key that has the scope %s.", ScopeToolsVerify).With("required_scope", string(ScopeToolsVerify))
	}
	var tool projections.Tool
	err = s.view(ctx, func(view *projections.View) (err error) {
		if err = by.stands(view, s.Now()); err == nil {
			tool, err = verifiable(view, by, id, in)
		}
		return err
	})
	if err != nil {
		return Answer{}, err
	}
	accepted := ""
	if in.AcceptFingerprint != nil {
		accepted = *in.AcceptFingerprint
	}
	target, err := targetOf(&tool, accepted)
	if err != nil {
		return Answer{}, err
	}
	target.Client = by.Project
	done, err := s.verificationTurn(ctx, by.Project, timeout)
	if err != nil {
		return Answer{}, err
	}
	defer done()
	// What is found is recorded, also when the client has left meanwhile.
	ctx = context.WithoutCancel(ctx)
	result, err := s.Tools.Checker.Verify(ctx, id, target, timeout)
	if err != nil {
		return Answer{}, verifyFault(err, id)
	}
	return s.writeShared(ctx, by, []string{commands.ToolKey(by.Project, id)}, func(view *projections.View, now time.Time) (plan, error) {
		current, err := verifiable(view, by, id, in)
		if err != nil {
			return plan{}, err
		}
		if !current.SameTarget(&tool.Tool) || current.Pinned != tool.Pinned {
			return plan{}, fault.New(fault.RevisionMismatch, "The tool was changed while it was verified. Verify it again.").With("revision", current.Revision)
		}
		return recordVerification(&current, &result, now)
	})
}

// verificationTurn waits for one of the project's places, for as long as the
// verification may take.
func (s *Service) verificationTurn(ctx context.Context, project string, timeout time.Duration) (done func(), err error) {
	within, cancel := context.WithTimeoutCause(ctx, timeout, toolcheck.ErrBusy)
	defer cancel()
	done, err = s.verifying.take(within, project, 1)
	if errors.Is(err, toolcheck.ErrBusy) {
		err = fault.New(fault.VerificationInProgress, "%d verifications are running, or %d of your project, which is the most. Try again in a moment.", toolcheck.MaxRunning, verificationsOfOne).
			With("limit", verificationsOfOne)
	}
	return done, err
}

// verifiable reads a tool that may be verified now.
func verifiable(view *projections.View, by *Asker, id string, in *VerifyInput) (projections.Tool, error) {
	v, err := findTool(view, &by.Caller, id)
	switch {
	case err != nil:
		return v, err
	case !v.Enabled:
		return v, fault.New(fault.ToolDisabled, "The tool is disabled. PUT it with \"enabled\": true before you verify it.").With("tool_id", id)
	case in.AcceptFingerprint != nil && v.Type != toolcheck.TypeMCP:
		return v, InvalidFields(FieldError{"/accept_fingerprint", "is for tools of type mcp: others have no fingerprint"})
	}
	return v, nil
}

// targetOf is what the tool's owner declared, for the checker.
func targetOf(v *projections.Tool, accept string) (toolcheck.Target, error) {
	t := toolcheck.Target{Type: v.Type, URL: v.Endpoint.URL, ToolName: v.Endpoint.ToolName, Auth: toolcheck.Auth(v.Auth), Accept: accept,
		Probe:       toolcheck.Probe{Method: v.Endpoint.ProbeMethod, Path: v.Endpoint.ProbePath, ExpectStatus: v.Endpoint.ProbeExpect},
		InputSchema: []byte(v.InputSchema), OutputSchema: []byte(v.OutputSchema)}
	if v.Pinned == ([32]byte{}) {
		return t, nil
	}
	t.Pinned.Fingerprint = hex.EncodeToString(v.Pinned[:])
	return t, json.Unmarshal([]byte(v.PinnedParts), &t.Pinned.Parts)
}

func verifyFault(err error, id string) error {
	var moved *toolcheck.MovedError
	switch {
	case errors.Is(err, toolcheck.ErrRunning):
		return fault.New(fault.VerificationInProgress, "This tool is being verified. Wait for that verification, then read the tool.").With("tool_id", id)
	case errors.Is(err, toolcheck.ErrBusy):
		return fault.New(fault.VerificationInProgress, "As many verifications as may (%d) are running, or schemas of others go first. Try again in a moment.", toolcheck.MaxRunning).With("limit", toolcheck.MaxRunning)
	case errors.Is(err, toolcheck.ErrNotVerifiable):
		return fault.New(fault.ToolNotVerifiable, "A function without a schema has nothing that could be verified. PUT it with an input_schema.").With("tool_id", id)
	case errors.As(err, &moved):
		return fault.New(fault.FingerprintChanged, "The tool's definition is not the one that you accept: it changed again. Look at it, then accept what it is now.").With("current", moved.Current)
	}
	return err
}

// recordVerification is what a result makes of a tool.
func recordVerification(v *projections.Tool, r *toolcheck.Result, now time.Time) (plan, error) {
	steps := stepBodies(r.Steps)
	text, err := json.Marshal(steps)
	if err != nil {
		return plan{}, err
	}
	p := event.ToolVerified{VerificationID: event.NewIDOf(event.VerificationIDKind, now), ToolID: v.ToolID, Status: r.Status, ErrorCode: string(r.Code),
		CheckedAt: now.UnixNano(), LatencyMS: int(r.Latency / time.Millisecond), Pinned: v.Pinned, Steps: string(text), Revision: v.Revision + 1}
	if r.Current.Fingerprint != "" {
		if _, err := hex.Decode(p.Current[:], []byte(r.Current.Fingerprint)); err != nil {
			return plan{}, err
		}
	}
	if r.Status == toolcheck.Passed {
		p.StaleAfter = now.Add(verificationLasts).UnixNano()
		if p.Pinned != p.Current {
			parts, err := json.Marshal(r.Current.Parts)
			if err != nil {
				return plan{}, err
			}
			p.Pinned, p.PinnedParts = p.Current, string(parts)
		}
	}
	v.Checked.Status = r.Status
	p.ToolStatus = statusOf(v)
	body := VerificationBody{ID: p.VerificationID, ToolID: v.ToolID, Status: p.Status, CheckedAt: event.Timestamp(now), LatencyMS: p.LatencyMS,
		ErrorCode: optional(p.ErrorCode), Fingerprint: FingerprintBody{fingerprint(p.Pinned), fingerprint(p.Current)}, Steps: steps, Revision: p.Revision}
	return plan{answer: Answer{Status: http.StatusOK, Body: body, Revision: p.Revision}, events: []pending{{"", "verify_tool", &p}}}, nil
}
