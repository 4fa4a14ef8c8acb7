package projections

import (
	"encoding/binary"
	"fmt"
	"strings"
	"time"

	"writegate/eventlog/event"
)

// UsageSums are what an agent did with a credential in one bucket (spec/v1.md
// part 11); "" where there was no agent.
type UsageSums struct {
	Requests, Throttled, Errors int64 // of each credential of a request
	TelemetryEvents             int64 // these and what follows of the token, where there is one, or else of the key
	InputTokens, OutputTokens   int64
	CostMicros                  int64
	SQLDecisions, Verifications int64
}

func (u *UsageSums) numbers() []*int64 {
	return []*int64{&u.Requests, &u.Throttled, &u.Errors, &u.TelemetryEvents, &u.InputTokens, &u.OutputTokens, &u.CostMicros, &u.SQLDecisions, &u.Verifications}
}

// Plus adds another bucket.
func (u *UsageSums) Plus(o *UsageSums) {
	plus(u.numbers(), o.numbers())
}

func (u *UsageSums) walk(c *codec) {
	for _, n := range u.numbers() {
		number(c, n)
	}
}

// UsageLevels are the lengths of the buckets of usage that are kept.
var UsageLevels = []time.Duration{time.Hour, 24 * time.Hour}

func usagePrefix(level time.Duration, project string) []byte {
	return appendSized(binary.BigEndian.AppendUint32([]byte(keyUsage), uint32(level/time.Second)), project)
}

// use adds to what a credential and an agent used.
func (t *tx) use(project string, at time.Time, credential, agent string, sums *UsageSums) {
	for _, level := range UsageLevels {
		key := metricStart(usagePrefix(level, project), startOf(at.UnixNano(), level))
		key = appendSized(appendSized(key, credential), agent)
		var kept UsageSums
		t.get(key, &kept)
		kept.Plus(sums)
		t.put(key, &kept)
	}
}

// OfAgent tells an agent's credential, a token or a bound subject, from the key beside
// it: a request with both is one request of its agent.
func OfAgent(credential string) bool {
	return strings.HasPrefix(credential, "tok_") || ofSubject(credential)
}

func ofSubject(credential string) bool {
	return strings.HasPrefix(credential, string(event.SubjectIDKind)+"_")
}

// usedBy is the credential under which a request is counted: its token, where
// it has one; the last, as keys are named first.
func usedBy(credentials []string) string {
	if len(credentials) == 0 {
		return ""
	}
	return credentials[len(credentials)-1]
}

// usageRecorded tells tokens and agents when they were last used, and counts.
func usageRecorded(t *tx, e *event.Envelope, p *event.UsageRecorded) {
	at := time.Unix(0, p.Minute).UTC()
	for i := range p.Credentials {
		u := &p.Credentials[i]
		t.use(e.Context.Project, at, u.CredentialID, u.AgentID, &UsageSums{Requests: int64(u.Requests), Throttled: int64(u.Throttled), Errors: int64(u.Errors)})
		if u.Requests == 0 {
			continue
		}
		t.saw(u.CredentialID, u.AgentID, at)
		if u.AgentID != "" && OfAgent(u.CredentialID) {
			t.did(e, u.AgentID, minuteOf(at), &AgentSums{Requests: int64(u.Requests)})
		}
	}
}

// saw notes that an agent's credential was used in a minute, and its agent seen.
func (t *tx) saw(credential, agent string, minute time.Time) {
	var k AgentToken
	var s AgentSubject
	switch { // most statements come in a minute that is noted
	case ofSubject(credential):
		if !t.get(subjectKey(credential), &s) || !minute.After(s.UsedAt) {
			return
		}
		s.UsedAt = minute
		t.put(subjectKey(credential), &s)
	case !OfAgent(credential) || !t.get(tokenKey(credential), &k) || !minute.After(k.UsedAt):
		return
	default:
		k.UsedAt = minute
		t.put(tokenKey(credential), &k)
	}
	t.agent(agent, func(a *Agent) {
		if minute.After(a.SeenAt) {
			a.SeenAt = minute
		}
	})
}

// requestReceived counts a statement that came with an agent's token. Its
// decision is in the same append.
func requestReceived(t *tx, e *event.Envelope) error {
	if e.Context.Project == "" {
		return nil
	}
	var p event.RequestReceived
	if err := e.Parse(&p); err != nil {
		return err
	}
	t.saw(usedBy(p.CredentialIDs), e.Context.AgentID, e.Time.Truncate(time.Minute))
	if p.Purpose == event.PurposeDescribe {
		return t.err
	}
	t.use(e.Context.Project, e.Time, usedBy(p.CredentialIDs), e.Context.AgentID, &UsageSums{SQLDecisions: 1})
	return t.err
}

// queryRejected is a statement too that came with a token.
func queryRejected(t *tx, e *event.Envelope, p *event.QueryRejected) {
	t.saw(usedBy(p.CredentialIDs), e.Context.AgentID, e.Time.Truncate(time.Minute))
}

// useTelemetry counts a batch for the credential that sent it, and for each of
// its agents. It counts when it was received.
func (t *tx) useTelemetry(e *event.Envelope, p *event.TelemetryReceived) {
	sums := map[string]*UsageSums{}
	for i := range p.Events {
		r := &p.Events[i]
		if sums[r.AgentID] == nil {
			sums[r.AgentID] = new(UsageSums)
		}
		sums[r.AgentID].Plus(&UsageSums{TelemetryEvents: 1, InputTokens: r.Usage.InputTokens, OutputTokens: r.Usage.OutputTokens, CostMicros: r.Usage.CostMicros})
	}
	for agent, sum := range sums {
		t.use(e.Context.Project, e.Time, usedBy(p.Origin.CredentialIDs), agent, sum)
	}
}

// useVerification counts a verification, for the agent whose credential asked for it.
func (t *tx) useVerification(e *event.Envelope, p *event.ToolVerified) {
	credential := usedBy(p.Origin.CredentialIDs)
	var k AgentToken
	if s := (AgentSubject{}); ofSubject(credential) && t.get(subjectKey(credential), &s) {
		k.AgentID = s.AgentID
	} else if OfAgent(credential) {
		t.get(tokenKey(credential), &k)
	}
	t.use(e.Context.Project, e.Time, credential, k.AgentID, &UsageSums{Verifications: 1})
}

// Usage hands the sums of every credential and agent of a project to take, by
// the start of their bucket, the oldest first: buckets that start from From on
// and before To.
func (v *View) Usage(project string, level time.Duration, from, to time.Time, take func(start time.Time, credential, agent string, sums *UsageSums) error) error {
	prefix := usagePrefix(level, project)
	it, err := v.iter(metricStart(prefix, from.Unix()), metricStart(prefix, to.Unix()))
	if err != nil {
		return err
	}
	for ok := it.First(); ok && err == nil; ok = it.Next() {
		c := codec{reading: true, buf: it.Key()[1+len(prefix):]}
		start := c.take(8)
		var credential, agent string
		texts(&c, &credential, &agent)
		var sums UsageSums
		bad := c.err
		if bad == nil {
			bad = unmarshal(it.Value(), &sums)
		}
		if bad != nil {
			err = v.store.damaged(fmt.Errorf("%q: %w", it.Key(), bad))
			break
		}
		err = take(time.Unix(int64(binary.BigEndian.Uint64(start)), 0).UTC(), credential, agent, &sums)
	}
	return v.closeIter(it, err)
}
