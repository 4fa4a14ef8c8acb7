package projections

import (
	"encoding/binary"
	"slices"
	"strings"
	"time"

	"writegate/eventlog/event"
)

// A Tool is a registered tool as it is now: Status and Pinned are those after
// its last verification.
type Tool struct {
	event.Tool
	Project     string
	Seq         uint64 // of tool_registered
	CreatedAt   time.Time
	UpdatedAt   time.Time
	PinnedParts string    // JSON object of short hashes; "" = nothing is pinned
	Checked     ToolCheck // the last verification of this target
}

// A ToolCheck is what remains of a verification. Without one, VerificationID is "".
type ToolCheck struct {
	VerificationID string
	Status         string
	ErrorCode      string
	Current        [32]byte
	CheckedAt      time.Time
	StaleAfter     time.Time // zero = it did not pass
}

// StaleAt tells whether a verification that passed is too old at a moment.
func (c *ToolCheck) StaleAt(now time.Time) bool {
	return !c.StaleAfter.IsZero() && !now.Before(c.StaleAfter)
}

// VerifiedAt tells whether the tool counts as verified at a moment: it is in
// service, its last verification passed, and that is not too long ago.
func (v *Tool) VerifiedAt(now time.Time) bool { return v.facts().VerifiedAt(now) }

// verifiedUntil is the moment from which on the tool does not count as verified, in
// ns since 1970; 0 where it does not anyway.
func (v *Tool) verifiedUntil() int64 {
	if !v.Enabled || v.Status != event.ToolIsVerified || v.Checked.StaleAfter.IsZero() {
		return 0
	}
	return max(0, v.Checked.StaleAfter.UnixNano())
}

func (v *Tool) facts() *ToolFacts {
	return &ToolFacts{Project: v.Project, Name: v.Name, Type: v.Type, ReadOnly: v.Annotations.ReadOnly, Destructive: v.Annotations.Destructive, until: v.verifiedUntil()}
}

// ToolFacts are what decisions read of a tool: a small record, however long its schemas are.
type ToolFacts struct {
	Project, Name, Type   string
	ReadOnly, Destructive bool
	until                 int64 // as verifiedUntil
}

// VerifiedAt is Tool.VerifiedAt.
func (f *ToolFacts) VerifiedAt(now time.Time) bool { return verifiedAt(f.until, now) }

func verifiedAt(until int64, now time.Time) bool { return until > 0 && now.Before(time.Unix(0, until)) }

func (f *ToolFacts) walk(c *codec) {
	texts(c, &f.Project, &f.Name, &f.Type)
	c.flag(&f.ReadOnly)
	c.flag(&f.Destructive)
	number(c, &f.until)
}

func (v *Tool) walk(c *codec) {
	texts(c, &v.ToolID, &v.Name, &v.Type, &v.Description, &v.Version)
	texts(c, &v.Endpoint.URL, &v.Endpoint.ToolName, &v.Endpoint.ProbeMethod, &v.Endpoint.ProbePath)
	n := c.length(len(v.Endpoint.ProbeExpect))
	if c.reading {
		v.Endpoint.ProbeExpect = make([]int, n)
	}
	for i := range v.Endpoint.ProbeExpect {
		number(c, &v.Endpoint.ProbeExpect[i])
	}
	texts(c, &v.Auth.Type, &v.Auth.Header, &v.Auth.Secret, &v.InputSchema, &v.OutputSchema)
	for _, flag := range []*bool{&v.Enabled, &v.Annotations.ReadOnly, &v.Annotations.Destructive, &v.Annotations.Idempotent, &v.Annotations.OpenWorld} {
		c.flag(flag)
	}
	c.strings(&v.Agents)
	c.dict(&v.Metadata)
	texts(c, &v.Status, &v.Project, &v.PinnedParts)
	c.fixed(v.Pinned[:])
	number(c, &v.Revision)
	number(c, &v.Seq)
	c.moments(&v.CreatedAt, &v.UpdatedAt)
	texts(c, &v.Checked.VerificationID, &v.Checked.Status, &v.Checked.ErrorCode)
	c.fixed(v.Checked.Current[:])
	c.moments(&v.Checked.CheckedAt, &v.Checked.StaleAfter)
}

// Tool finds a tool of a project.
func (v *View) Tool(project, id string) (t Tool, ok bool, err error) {
	ok, err = v.read(toolKey(id), &t)
	if t.Project != project {
		return Tool{}, false, err
	}
	return t, ok, err
}

// ToolFacts finds what decisions read of a tool of a project.
func (v *View) ToolFacts(project, id string) (f ToolFacts, ok bool, err error) {
	ok, err = v.read(toolFactsKey(id), &f)
	if f.Project != project {
		return ToolFacts{}, false, err
	}
	return f, ok, err
}

// ToolStatuses are all statuses of a tool.
var ToolStatuses = []string{event.ToolIsRegistered, event.ToolIsVerified, event.ToolIsFailed, event.ToolIsDrifted, event.ToolIsDisabled}

// A ToolFilter selects tools of a project; an empty field selects all.
type ToolFilter struct {
	Project    string
	Type       string
	Status     string
	AgentID    string // bound to this agent
	NamePrefix string
}

// Tools lists tools by the time of their registration.
func (v *View) Tools(f ToolFilter, page Page) ([]Tool, string, error) {
	return gather(func(take func(*Tool) (bool, error)) (string, error) { return v.EachTool(f, page, take) })
}

// EachTool is Tools one by one, as EachApproval.
func (v *View) EachTool(f ToolFilter, page Page, take func(*Tool) (room bool, err error)) (next string, err error) {
	statuses, err := oneOf(f.Status, ToolStatuses)
	if err != nil {
		return "", err
	}
	states := make([]string, len(statuses))
	for i, s := range statuses {
		states[i] = inProject(f.Project, s)
	}
	question := []string{f.Project, f.Type, f.Status, f.AgentID, f.NamePrefix}
	return each(v, listing{keyToolList, keyTool, states, question}, page, func(t *Tool) bool {
		return matches(f.Type, t.Type) && strings.HasPrefix(t.Name, f.NamePrefix) && (f.AgentID == "" || slices.Contains(t.Agents, f.AgentID))
	}, take)
}

// ToolsVerified tells whether each tool in service that is bound to an agent
// counts as verified, and there is one. It looks at the one whose verification ends
// first, however many there are.
func (v *View) ToolsVerified(agent string, now time.Time) (bool, error) {
	prefix := toolOfPrefix(agent)
	it, err := v.iter(prefix, after(prefix))
	if err != nil {
		return false, err
	}
	all := it.First() && verifiedAt(int64(binary.BigEndian.Uint64(it.Key()[1+len(prefix):])), now)
	return all, v.closeIter(it, nil)
}
