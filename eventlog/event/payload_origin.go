package event

// An Origin stands in every event that a request under /v1 caused: who asked,
// and what is answered when the request is sent again under its key. The
// request's id, the agent and the project stand in the context.
type Origin struct {
	CredentialIDs []string // key_… and tok_…, one or both
	Idempotency   *KeptAnswer
}

// A KeptAnswer is the answer of a POST that carried an Idempotency-Key, in the
// first event that it wrote. It never holds a secret.
type KeptAnswer struct {
	Key           string
	ScopeDigest   [32]byte // SHA-256 over project, method, path and key
	RequestSHA256 [32]byte
	ExpiresAt     int64 // ns since 1970
	Status        int   // HTTP
	Body          string
}

func (o *Origin) form(f *form) {
	f.strs("credential_ids", &o.CredentialIDs, may)
	part(f, "idempotency", &o.Idempotency, (*KeptAnswer).form)
}

func (k *KeptAnswer) form(f *form) {
	f.str("body", &k.Body, may)
	num(f, "expires_at", &k.ExpiresAt, need)
	f.str("key", &k.Key, need)
	f.hash("request_sha256", &k.RequestSHA256, need)
	f.hash("scope_digest", &k.ScopeDigest, need)
	num(f, "status", &k.Status, need)
}

// An Originated is a payload that has an Origin.
type Originated interface {
	Typed
	From() *Origin
}

func (f *form) origin(o *Origin) { f.group("origin", 2, o.form) }
