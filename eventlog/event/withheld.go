package event

import (
	"crypto/rand"
	"encoding/json"
	"slices"
)

// A Salt is a random part of an event that holds what Draft.WithoutData leaves out.
// The event's hash is shown to everybody, with all else that it covers: without a
// salt, a value of few possibilities could be found by trying them against it. Zero
// is no salt: there is nothing to leave out, or the event is older than salts are.
type Salt [16]byte

const keySalt = "salt"

// keyVerifier is that of a token; it sorts behind its scopes.
const keyVerifier = "scram_verifier"

// keySubject is that of a bound subject of the issuer of agents' tokens.
const keySubject = "subject"

func (f *form) salt(s *Salt) { fixed(f, keySalt, s[:], may) }

// A salted payload draws its salt where it holds what is withheld and has none yet.
type salted interface{ draw() }

func (s *Salt) drawFor(holds bool) {
	if holds && *s == (Salt{}) {
		_, _ = rand.Read(s[:]) // never fails (crypto/rand)
	}
}

func (p *RequestReceived) draw()       { p.Salt.drawFor(p.IdempotencyKey != "") }
func (p *ApprovalCreated) draw()       { p.Salt.drawFor(p.Impact != "") }
func (p *ExecutionDispatched) draw()   { p.Salt.drawFor(p.Idempotency != nil) }
func (p *ExecutionSuccess) draw()      { p.Salt.drawFor(p.Answer != nil) }
func (p *ExecutionFailure) draw()      { p.Salt.drawFor(p.Answer != nil || p.Message != "") }
func (p *AgentTokenIssued) draw()      { p.Salt.drawFor(p.Verifier != "") }
func (p *AgentSubjectBound) draw()     { p.Salt.drawFor(p.Subject != "") }
func (p *CatalogRecorded) draw()       { p.Salt.drawFor(len(p.Content) > 0) }
func (p *ExecutionStateUnknown) draw() { p.Salt.drawFor(p.Answer != nil) }

// WithoutData gives d as everybody may see it: without the body of a kept answer
// that holds rows of the database, or a text of the database's, which quotes
// values; without the idempotency key that such an answer is given for, and its
// digest; without such a text of a failure; without the plan estimate of an
// approval, which tells what is in the tables; without the verifier of a token, and the name that an
// issuer has for an agent, which may be a person's; without what was read of
// the database's catalogues, which has the texts of views; and, where one of these is left out, without the salt. ok is false where d holds none and is given as it is. Only d as
// it was is what its hash covers.
func (d *Draft) WithoutData() (open Draft, ok bool) {
	left, marks := []string{keySalt}, Payload(nil) // what is left out, and what stands in its place
	if answer, holds := d.openAnswer(); holds {
		left, marks = append(left, "answer"), append(marks, Field{"answer", answer})
	}
	for _, field := range []struct {
		of  Type
		key string
	}{
		{TypeApprovalCreated, "impact"}, {TypeExecutionFailure, "message"},
		{TypeRequestReceived, "idempotency_key"}, {TypeExecutionDispatched, "idempotency"}, {TypeAgentTokenIssued, keyVerifier}, {TypeAgentSubjectBound, keySubject}, {TypeCatalogRecorded, "content"},
	} {
		if d.Type != field.of {
			continue
		}
		if _, there := d.Get(field.key); there {
			left, marks = append(left, field.key), append(marks, Field{field.key + "_withheld", Bool(true)})
		}
	}
	if len(marks) == 0 {
		return *d, false
	}
	rest := slices.DeleteFunc(slices.Clone(d.Fields()), func(f Field) bool { return slices.Contains(left, f.Key) })
	return d.With(NewPayload(append(rest, marks...)...)), true
}

// openAnswer is the kept answer of d without its body; holds is false where d keeps
// none, or one that everybody may see.
func (d *Draft) openAnswer() (open Value, holds bool) {
	v, _ := d.Get("answer")
	fields, _ := v.AsMap()
	body, _ := fields.Get("body")
	if text, isText := body.AsString(); !isText || !holdsData(text) {
		return Value{}, false
	}
	kept := slices.Clone(fields)
	for i := range kept {
		if kept[i].Key == "body" {
			kept[i].Value = String("")
		}
	}
	return Map(append(kept, Field{"body_withheld", Bool(true)})...), true
}

// holdsData tells whether the body of a kept answer holds more than the gate's
// own words. A body that can't be read is taken for one that does.
func holdsData(body string) bool {
	var answer struct {
		Rows []json.RawMessage `json:"rows"`
		Code string            `json:"error_code"`
	}
	return json.Unmarshal([]byte(body), &answer) != nil || len(answer.Rows) > 0 || slices.Contains(quotesDatabase, answer.Code)
}

// quotesDatabase are the error codes whose message may have the database's own text.
var quotesDatabase = []string{"db_query_failed", "db_unavailable"}
