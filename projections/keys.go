package projections

import (
	"encoding/binary"
	"time"
)

// Keys. The first byte of every key in Pebble is the key space, so that a
// rebuild fills a second one and the switch is one write; what follows here is
// the key inside it. Keys of one prefix sort as they are listed.
//
// What every load of a replay writes and does not lie behind what loads before it
// wrote (most fields' postings, idempotency keys, counters, meta) stands side by
// side, from keyPosting to keyMeta, and so in one table of a load.
const (
	keyApproval      = "ap/" // id -> Approval
	keyApprovalList  = "al/" // state, be64(seq) -> id
	keyApprovalDue   = "ad/" // dueKey of expires_at, id -> nothing; pending ones alone
	keyGrant         = "gn/" // id -> Grant
	keyGrantList     = "gl/" // state, be64(seq) -> id
	keyGrantDue      = "gd/" // dueKey of until, id -> nothing; active ones alone
	keyGrantOf       = "gk/" // agent, be64(seq) -> id; active ones alone
	keyExecution     = "ex/" // id -> Execution
	keyExecutionList = "el/" // state, be64(seq) -> id
	keyPolicy        = "po/" // policy_version -> PolicyVersion
	keyPolicyList    = "pl/" // status, be64(seq) -> policy_version
	keyDocument      = "pd/" // hash -> the document's bytes
	keyCatalog       = "cs/" // hash -> CatalogSnapshot
	keyIdempotency   = "jd/" // scope digest -> IdempotencyRecord
	keyExpiry        = "je/" // dueKey of expires_at, scope digest -> nothing
	keyCounters      = "jc/" // -> Counters
	keyPosting       = "ix/" // field, value, be32(block) -> positions; of a tag with be16(position) behind it
	keyBlock         = "jt/" // be32(block) -> least and greatest time
	keyTimes         = "ju/" // be32(block) -> time of each event
	keyLineage       = "lg/" // be16(n) -> the n-th log before this one; none where it follows no other

	keyAgent           = "ga/" // id -> Agent
	keyAgentList       = "gb/" // project and status, be64(seq) -> id
	keyToken           = "gt/" // id -> AgentToken
	keyTokenDigest     = "gs/" // SHA-256 of the secret -> id
	keyTokenList       = "gu/" // agent, be64(seq) -> id
	keyVerifiers       = "gx/" // agent -> tokenVerifiers
	keySubject         = "gy/" // id -> AgentSubject
	keySubjectOf       = "gz/" // SHA-256 of issuer and subject -> id of the last binding
	keySubjectList     = "gj/" // nothing, be64(seq) -> id
	keyAgentPolicy     = "gp/" // id -> AgentPolicy
	keyAgentPolicyHead = "gh/" // id -> AgentPolicyHead
	keyAgentPolicyList = "gq/" // project, be64(seq) -> id
	keyApplication     = "gr/" // agent, policy -> Application
	keyAppliedTo       = "gv/" // policy, agent -> nothing
	keyAgentMinute     = "gm/" // agent, be16(minute % minuteSlots) -> AgentMinute
	keyThrottle        = "gw/" // agent, policy, rule, be16(minute % minuteSlots) -> throttleMinute

	keyTool      = "to/" // id -> Tool
	keyToolList  = "tt/" // project:status, be64(seq) -> id
	keyToolFacts = "tf/" // id -> ToolFacts
	keyToolOf    = "ta/" // agent, be64(until when it is verified; 0 = it is not), tool -> nothing; those in service alone

	keySent    = "ts/" // digest of project and telemetry id -> when it was accepted
	keyMetric  = "tm/" // be32(seconds of a bucket), project, be64(its start), dimensions -> MetricSums
	keyFine    = "tn/" // project -> the first start of its buckets of less than an hour
	keyUsage   = "tu/" // be32(seconds of a bucket), project, be64(its start), credential, agent -> UsageSums
	keySentDue = "tx/" // dueKey of the time it is forgotten, be64(seq) -> digests

	// keyMeta is left out of the digest: it says how the space came about. Programs
	// of all versions find the projector version under keyApplied.
	keyMeta    = "meta/"
	keyApplied = keyMeta + "applied"
	// keyTree is left out as well: the hashes of the log's tree are no projection.
	keyTree = "tree/" // be32(block) -> hashes
)

// spaceKey, outside of every space, holds the number of the current one.
var spaceKey = []byte{0}

// listKey orders the members of a list by the event that created them.
func listKey(prefix, state string, seq uint64) []byte {
	return appendListKey(make([]byte, 0, len(prefix)+len(state)+9), prefix, state, seq)
}

func appendListKey(dst []byte, prefix, state string, seq uint64) []byte {
	dst = append(append(append(dst, prefix...), state...), '/')
	return binary.BigEndian.AppendUint64(dst, seq)
}

func listPrefix(prefix, state string) []byte {
	return append(append([]byte(prefix), state...), '/')
}

// before1970 turns the sign of a time in a dueKey, so that times before 1970 sort
// first: a clock may stand there, and what is due 24 hours earlier lies there sooner.
const before1970 = 1 << 63

// dueKey orders by time.
func dueKey(prefix string, at time.Time, rest string) []byte {
	k := binary.BigEndian.AppendUint64([]byte(prefix), uint64(at.UnixNano())^before1970)
	return append(k, rest...)
}

// dueTime is the moment in a dueKey.
func dueTime(key []byte, prefix string) time.Time {
	return time.Unix(0, int64(binary.BigEndian.Uint64(key[len(prefix):])^before1970)).UTC()
}

// after is the first key behind all that begin with prefix.
func after(prefix []byte) []byte {
	end := append([]byte(nil), prefix...)
	for i := len(end) - 1; i >= 0; i-- {
		if end[i]++; end[i] != 0 {
			return end[:i+1]
		}
	}
	return nil
}
