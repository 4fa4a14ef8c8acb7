package sqlgate

import (
	"crypto/sha256"
	"encoding/binary"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"writegate/commands/fault"
	"writegate/sqlgate/lookalike"
	"writegate/sqlgate/policy"
)

// Limits of a request (spec/decisions.md part 3).
const (
	maxClaimChars     = 256
	maxIdempotencyKey = 255
	maxSessionIDChars = 256
)

// Execution profiles (spec/decisions.md part 3).
const (
	ProfileDefault = "default"
	ProfileLatency = "latency" // the answer does not wait for the fsync of its result evidence
	ProfileBulk    = "bulk"    // a longer timeout
)

// Claims say who asks, from where and for whom. Nobody verified them
// (spec/gate.md part 5.6).
type Claims struct {
	Actor, App, Tenant, Role, Host string
	Env                            string // shadow, staging or prod
	SessionID                      string // "" where there is none
}

// A Request is one statement with everything that decides about it.
type Request struct {
	RequestID string // req_ and a UUIDv7, or the caller's own
	Claims
	SQL              string
	ApprovalID       string // set when retrying after approval
	ExecutionProfile string // "" is default
	IdempotencyKey   string // "" is none
	Preview          bool   // classify and decide alone; nothing is written, nothing executes
	DryRun           bool   // run it and roll it back
	TLSSubject       string // name of the verified client certificate, its subject as a rule, "" without one
	WireUser         string // who proved by a password to be it, "" without one
	AgentToken       string // secret of an agent's token that came with the request, or ""
	Agent            Agent  // of that token; Submit fills it in
	Operator         string // label of a valid operator token that came with the request, or ""
	WireSession      string // the connection of the wire listener that it came on, or ""
	MCP              bool   // it came to POST /mcp
	Client           string // name and version of the MCP client, a claim, or ""
	Reason           string // why the MCP client wants it, a claim, or ""
	Trace            string // the caller's trace id and span id, "" where it has none
	ReceivedAt       time.Time

	// Stands is why whoever sent it could not send it any more, nil while they could. It
	// is asked before a statement is sent, which may have waited. May be nil.
	Stands func() error
}

// Validate checks what can be checked without reading the SQL: required
// fields, closed sets, lengths. All faults of fields come at once, as
// validation_failed with details.fields; SQL over maxSQLBytes is oversized_sql.
func (r *Request) Validate(maxSQLBytes int) error {
	fields := map[string]string{}
	for _, claim := range []struct{ name, value string }{
		{"actor", r.Actor}, {"app", r.App}, {"tenant", r.Tenant}, {"role", r.Role}, {"host", r.Host},
	} {
		if problem := claimProblem(claim.value); problem != "" {
			fields[claim.name] = problem
		}
	}
	switch r.Env {
	case "shadow", "staging", "prod":
	default:
		fields["env"] = "must be shadow, staging or prod"
	}
	switch r.ExecutionProfile {
	case "", ProfileDefault, ProfileLatency, ProfileBulk:
	default:
		fields["execution_profile"] = "must be default, latency or bulk"
	}
	if problem := claimProblem(r.Client); r.Client != "" && problem != "" {
		fields["client"] = problem
	}
	if problem := reasonProblem(r.Reason); r.Reason != "" && problem != "" {
		fields["reason"] = problem
	}
	if r.SessionID != "" && claimProblem(r.SessionID) != "" {
		fields["session_id"] = claimProblem(r.SessionID)
	}
	if r.ApprovalID != "" && claimProblem(r.ApprovalID) != "" {
		fields["approval_id"] = claimProblem(r.ApprovalID) // whatever it is, it goes into the log
	}
	if r.IdempotencyKey != "" && !visibleASCII(r.IdempotencyKey, maxIdempotencyKey) {
		fields["idempotency_key"] = "must be 1 to 255 visible ASCII characters"
	}
	for mode, asked := range map[string]bool{"preview mode: nothing executes there": r.Preview, "a dry run: nothing of it stays": r.DryRun} {
		if asked && r.ApprovalID != "" {
			fields["approval_id"] = "cannot be given in " + mode
		}
		if asked && r.IdempotencyKey != "" {
			fields["idempotency_key"] = "cannot be given in " + mode
		}
	}
	if len(fields) > 0 {
		return FieldsFault(fields)
	}
	if len(r.SQL) > maxSQLBytes {
		return OversizedSQL(len(r.SQL), maxSQLBytes)
	}
	return nil
}

// OversizedSQL is the fault of a text over the limit, both in bytes.
func OversizedSQL(got, most int) *fault.Fault {
	return fault.New(fault.OversizedSQL, "The SQL has %d bytes and at most %d are taken. Send less at once.", got, most).
		With("got", got).With("max", most)
}

// FieldsFault is validation_failed with one line per field.
func FieldsFault(fields map[string]string) *fault.Fault {
	return fault.New(fault.ValidationFailed, "Some fields are missing or have values that are not taken; details.fields names each. Mend them and send the request again.").
		With("fields", fields)
}

func claimProblem(value string) string {
	switch {
	case value == "":
		return "is required"
	case !utf8.ValidString(value):
		return "must be valid UTF-8"
	case utf8.RuneCountInString(value) > maxClaimChars:
		return "must have at most 256 characters"
	case strings.ContainsFunc(value, func(c rune) bool { return c < ' ' || c == 0x7f }):
		return "must not hold control characters"
	}
	return ""
}

// reasonProblem is claimProblem for what has to say something.
func reasonProblem(value string) string {
	if problem := claimProblem(value); problem != "" {
		return problem
	}
	if strings.IndexFunc(value, func(c rune) bool { return !unicode.IsSpace(c) && !lookalike.Invisible(c) }) < 0 {
		return "must say why"
	}
	return ""
}

func visibleASCII(s string, most int) bool {
	return s != "" && len(s) <= most && !strings.ContainsFunc(s, func(c rune) bool { return c <= ' ' || c > '~' })
}

// channel is how the request came in, as a policy sees it.
func (r *Request) channel() string {
	switch {
	case r.WireSession != "":
		return policy.ChannelWire
	case r.MCP:
		return policy.ChannelMCP
	}
	return policy.ChannelHTTP
}

// sqlDigest is the SHA-256 of the exact text.
func (r *Request) sqlDigest() [32]byte { return sha256.Sum256([]byte(r.SQL)) }

// digest binds an idempotency key, and an approval among other things, to the
// exact bytes and context of a request (spec/decisions.md parts 3 and 5). Each
// part carries its length, so that no two contexts share a digest.
func (r *Request) digest() [32]byte {
	parts := []string{"gate.request.v1", r.Actor, r.App, r.Tenant, r.Role, r.Host, r.Env, r.SessionID, r.SQL}
	// Who is verified counts beside what is claimed. Requests without such a name
	// keep the digest they had; the number of parts and their names tell the forms apart.
	if r.Agent.ID != "" {
		parts = append(parts, r.Agent.ID)
	}
	if r.TLSSubject != "" {
		parts = append(parts, "tls_subject", r.TLSSubject)
	}
	if r.WireUser != "" {
		parts = append(parts, "wire_user", r.WireUser)
	}
	return digestOf(parts...)
}

// approvalDigest binds an approval to the servers and the database of the gate's URL,
// too, and to the schema that the text's names are looked up in: under other settings
// of the gate the same text is another statement.
func (g *Gate) approvalDigest(r *Request) [32]byte {
	digest := r.digest()
	return digestOf("gate.request.database.v1", string(digest[:]), g.Database.Servers(), g.Database.Name(), g.Wire.SearchPath)
}

// keyDigest binds an idempotency key. An operator's token may have opened what
// the statement answered (emergency_bypass), so it is bound to that too; an
// approval is not, which any retry of its request may use.
func (r *Request) keyDigest() [32]byte {
	digest := r.digest()
	if r.Operator == "" {
		return digest
	}
	return digestOf("gate.idempotency.operator.v1", string(digest[:]), r.Operator)
}

// keyScope is what an idempotency key is unique in: actor, app and tenant.
func (r *Request) keyScope() [32]byte {
	return digestOf("gate.idempotency_key.v1", r.Actor, r.App, r.Tenant, r.IdempotencyKey)
}

func digestOf(parts ...string) [32]byte {
	size := 0
	for _, p := range parts {
		size += 8 + len(p)
	}
	buf := make([]byte, 0, size)
	for _, p := range parts {
		buf = binary.BigEndian.AppendUint64(buf, uint64(len(p)))
		buf = append(buf, p...)
	}
	return sha256.Sum256(buf)
}
