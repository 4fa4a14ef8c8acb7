package event

// Types of the service's own life.
const (
	TypeStartup                 Type = "startup"
	TypeShutdown                Type = "shutdown"
	TypeLogTailRecovered        Type = "log_tail_recovered"
	TypeCheckpointSigned        Type = "checkpoint_signed"
	TypeHealthFail              Type = "health_fail"
	TypeAuditCorruptionDetected Type = "audit_corruption_detected"
	TypeDBUnavailable           Type = "db_unavailable"
	TypeRateLimitHit            Type = "rate_limit_hit"
	TypeOversizedRequest        Type = "oversized_request"
	TypeOperatorAuthFailed      Type = "operator_auth_failed"
	TypeEvidenceExported        Type = "evidence_exported"
	TypeLogFenceTaken           Type = "log_fence_taken"
)

// EvidenceExported says that a range of the log left the service as an evidence
// bundle. It is durable before the bundle's first byte leaves; whether all of it
// arrived nobody knows. The context's evidence_bundle names the bundle.
type EvidenceExported struct {
	Bytes    int64    // of the document; an operator's, which holds what is withheld, in whole MiB, rounded up
	Client   string   // who asked: the certificate's subject or the remote address
	Digest   [32]byte // SHA-256 of the document
	FirstSeq uint64
	LastSeq  uint64
	Reason   string // as asked; "" = none was given
	SignedBy string // id of the key; "" = it is not signed
}

func (*EvidenceExported) EventType() Type         { return TypeEvidenceExported }
func (p *EvidenceExported) Fields() Payload       { return write(7, p.form) }
func (p *EvidenceExported) Parse(l Payload) error { return read(l, p.form) }

func (p *EvidenceExported) form(f *form) {
	num(f, "bytes", &p.Bytes, need)
	f.str("client", &p.Client, need)
	f.hash("digest", &p.Digest, need)
	num(f, "first_seq", &p.FirstSeq, need)
	num(f, "last_seq", &p.LastSeq, need)
	f.str("reason", &p.Reason, may)
	f.str("signed_by", &p.SignedBy, may)
}

// EngineTimeline is the key of Startup.Engine with the timeline that the database was put
// back to on purpose (GATE_DATABASE_TIMELINE), eight hex digits. A run whose startup has it,
// and the one before had not, knows of no newer one.
const EngineTimeline = "database_timeline"

// Startup says under which conditions evidence is written from here on. The
// mode stands in the context.
type Startup struct {
	Version       string // of the gate
	Profile       string
	Fsync         string // required, off
	VerifyOnStart string
	OnTornTail    string
	Filesystem    string // named where it matters, for example overlay or tmpfs
	Anchors       []Anchor
	Predecessor   *Predecessor
	SigningVKey   string
	Engine        map[string]string // versions of what classifies and decides
	Warnings      []string
}

// An Anchor is what a head anchor said when the log was opened.
type Anchor struct {
	Level  string // L1 to L4
	Result string
	Seq    uint64 // 0 = it named none
}

// Predecessor is the log that this one follows after a loss.
type Predecessor struct {
	LogID         [16]byte
	LastSeq       uint64
	LastEventHash [32]byte
	Reason        string
}

func (*Startup) EventType() Type         { return TypeStartup }
func (p *Startup) Fields() Payload       { return write(11, p.form) }
func (p *Startup) Parse(l Payload) error { return read(l, p.form) }

func (p *Startup) form(f *form) {
	parts(f, "anchors", &p.Anchors, (*Anchor).form)
	f.dict("engine", &p.Engine, need)
	f.str("filesystem", &p.Filesystem, may)
	f.str("fsync", &p.Fsync, need)
	f.str("on_torn_tail", &p.OnTornTail, need)
	part(f, "predecessor", &p.Predecessor, (*Predecessor).form)
	f.str("profile", &p.Profile, need)
	f.str("signing_vkey", &p.SigningVKey, may)
	f.str("verify_on_start", &p.VerifyOnStart, need)
	f.str("version", &p.Version, need)
	f.strs("warnings", &p.Warnings, may)
}

func (a *Anchor) form(f *form) {
	f.str("level", &a.Level, need)
	f.str("result", &a.Result, need)
	num(f, "seq", &a.Seq, may)
}

func (p *Predecessor) form(f *form) {
	f.hash("last_event_hash", &p.LastEventHash, need)
	num(f, "last_seq", &p.LastSeq, need)
	fixed(f, "log_id", p.LogID[:], need)
	f.str("reason", &p.Reason, need)
}

// Shutdown is the last event of a clean run.
type Shutdown struct {
	Reason  string
	Digest  [32]byte // of the projections; zero = it took too long
	Drained bool     // every running request ended before the deadline

	// Where there is a digest: the event up to which they had folded, and the
	// version of the projectors.
	DigestSeq        uint64
	DigestProjectors int
}

func (*Shutdown) EventType() Type         { return TypeShutdown }
func (p *Shutdown) Fields() Payload       { return write(5, p.form) }
func (p *Shutdown) Parse(l Payload) error { return read(l, p.form) }

func (p *Shutdown) form(f *form) {
	f.hash("digest", &p.Digest, may)
	num(f, "digest_projectors", &p.DigestProjectors, may)
	num(f, "digest_seq", &p.DigestSeq, may)
	f.flag("drained", &p.Drained, need)
	f.str("reason", &p.Reason, need)
}

// LogTailRecovered names what was found after the last complete batch and was
// put aside (design/eventlog.md part 8).
type LogTailRecovered struct {
	Tails []Tail
}

// A Tail is one discarded range of a segment and the file that keeps it.
type Tail struct {
	Segment        int
	Offset, Length int64
	SHA256         [32]byte
	ReadableFrames int
	File           string
}

func (*LogTailRecovered) EventType() Type         { return TypeLogTailRecovered }
func (p *LogTailRecovered) Fields() Payload       { return write(1, p.form) }
func (p *LogTailRecovered) Parse(l Payload) error { return read(l, p.form) }

func (p *LogTailRecovered) form(f *form) { parts(f, "tails", &p.Tails, (*Tail).form) }

func (t *Tail) form(f *form) {
	f.str("file", &t.File, need)
	num(f, "length", &t.Length, need)
	num(f, "offset", &t.Offset, need)
	num(f, "readable_frames", &t.ReadableFrames, need)
	num(f, "segment", &t.Segment, need)
	f.hash("sha256", &t.SHA256, need)
}

// LogFenceTaken says that from here on this copy of the log is the one that is written:
// it raised the log's epoch in the table of GATE_LOG_FENCE_URL. A copy whose newest such
// event is not what the table has is behind another one.
type LogFenceTaken struct {
	Epoch         uint64
	Nonce         [16]byte // random, so that two copies that took the same epoch of a table that lost its last change are told apart
	Holder        string   // host and process, for people
	PreviousEpoch uint64   // that the table had; 0 = it knew nothing of the log
	Reason        string   // why an operator had this copy go on whatever the table had; "" = nobody had to
}

func (*LogFenceTaken) EventType() Type         { return TypeLogFenceTaken }
func (p *LogFenceTaken) Fields() Payload       { return write(5, p.form) }
func (p *LogFenceTaken) Parse(l Payload) error { return read(l, p.form) }

func (p *LogFenceTaken) form(f *form) {
	num(f, "epoch", &p.Epoch, need)
	f.str("holder", &p.Holder, need)
	fixed(f, "nonce", p.Nonce[:], need)
	num(f, "previous_epoch", &p.PreviousEpoch, may)
	f.str("reason", &p.Reason, may)
}

// CheckpointSigned names a signed tree head of the log.
type CheckpointSigned struct {
	Size   uint64
	Root   [32]byte
	Digest [32]byte // of the projections as of Size, where due

	DigestProjectors int // version of the projectors, where there is a digest
}

func (*CheckpointSigned) EventType() Type         { return TypeCheckpointSigned }
func (p *CheckpointSigned) Fields() Payload       { return write(4, p.form) }
func (p *CheckpointSigned) Parse(l Payload) error { return read(l, p.form) }

func (p *CheckpointSigned) form(f *form) {
	f.hash("digest", &p.Digest, may)
	num(f, "digest_projectors", &p.DigestProjectors, may)
	f.hash("root", &p.Root, need)
	num(f, "size", &p.Size, need)
}

// HealthFail says that a step of the service's health failed.
type HealthFail struct {
	Step    string
	Message string
}

func (*HealthFail) EventType() Type         { return TypeHealthFail }
func (p *HealthFail) Fields() Payload       { return write(2, p.form) }
func (p *HealthFail) Parse(l Payload) error { return read(l, p.form) }

func (p *HealthFail) form(f *form) {
	f.str("message", &p.Message, need)
	f.str("step", &p.Step, need)
}

// AuditCorruptionDetected says that a running service found its log damaged.
type AuditCorruptionDetected struct {
	Kind   string // of the fault (design/eventlog.md part 7)
	Detail string
	Seq    uint64 // 0 = not known
}

func (*AuditCorruptionDetected) EventType() Type         { return TypeAuditCorruptionDetected }
func (p *AuditCorruptionDetected) Fields() Payload       { return write(3, p.form) }
func (p *AuditCorruptionDetected) Parse(l Payload) error { return read(l, p.form) }

func (p *AuditCorruptionDetected) form(f *form) {
	f.str("detail", &p.Detail, need)
	f.str("kind", &p.Kind, need)
	num(f, "seq", &p.Seq, may)
}

// DBUnavailable says that the database was out of reach.
type DBUnavailable struct {
	Message string
	Count   int // how often since the last such event; 0 = this once
}

func (*DBUnavailable) EventType() Type         { return TypeDBUnavailable }
func (p *DBUnavailable) Fields() Payload       { return write(2, p.form) }
func (p *DBUnavailable) Parse(l Payload) error { return read(l, p.form) }

func (p *DBUnavailable) form(f *form) {
	num(f, "count", &p.Count, may)
	f.str("message", &p.Message, need)
}

// A Flood is what the throttled events say: written at once the first time,
// then at most once per client and minute (spec/decisions.md part 3).
type Flood struct {
	Client string // the certificate's subject or the remote address
	Path   string // of the endpoint; "" = the wire
	Limit  int    // 0 = does not apply
	Got    int    // 0 = does not apply
	Count  int    // occurrences since the last such event of this client, this one included
}

// RateLimitHit counts requests over the client's rate.
type RateLimitHit struct{ Flood }

// OversizedRequest counts requests over a size limit.
type OversizedRequest struct{ Flood }

// OperatorAuthFailed counts requests with a missing or wrong operator token.
type OperatorAuthFailed struct{ Flood }

func (*RateLimitHit) EventType() Type       { return TypeRateLimitHit }
func (*OversizedRequest) EventType() Type   { return TypeOversizedRequest }
func (*OperatorAuthFailed) EventType() Type { return TypeOperatorAuthFailed }

// Fields and Parse serve the three types that embed a Flood.
func (p *Flood) Fields() Payload       { return write(5, p.form) }
func (p *Flood) Parse(l Payload) error { return read(l, p.form) }

func (p *Flood) form(f *form) {
	f.str("client", &p.Client, need)
	num(f, "count", &p.Count, need)
	num(f, "got", &p.Got, may)
	num(f, "limit", &p.Limit, may)
	f.str("path", &p.Path, may)
}
