package replay

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"writegate/eventlog/event"
)

// What gate verify says of requests whose bindings do not stand.
func TestARequestUnderABindingThatDoesNotStandIsNamed(t *testing.T) {
	var found []Difference
	v := NewVerifier(nil, nil, 0, 0, func(d Difference) { found = append(found, d) })
	seq := uint64(0)
	take := func(agent string, p event.Typed) {
		t.Helper()
		seq++
		d := event.New(time.Unix(0, 1), event.Context{AgentID: agent, Project: "p", RequestID: "req_1"}, p)
		require.NoError(t, v.Take(&event.Envelope{Seq: seq, Draft: d}))
	}
	asks := func(agent, credential string) {
		t.Helper()
		take(agent, &event.RequestReceived{CredentialIDs: []string{credential}})
	}
	earlier := event.New(time.Unix(0, 1), event.Context{AgentID: "agt_0"}, &event.AgentSubjectBound{SubjectID: "sub_0"})
	require.NoError(t, v.Earlier(&event.Envelope{Seq: 9, Draft: earlier}))
	take("agt_1", &event.AgentSubjectBound{SubjectID: "sub_1"})
	take("agt_2", &event.AgentSubjectBound{SubjectID: "sub_2"})
	asks("agt_0", "sub_0")
	asks("agt_1", "sub_1")
	asks("agt_1", "tok_1")
	require.Empty(t, found)

	asks("agt_1", "sub_2")
	asks("agt_1", "sub_3")
	take("agt_1", &event.AgentSubjectUnbound{SubjectID: "sub_1"})
	asks("agt_1", "sub_1")
	take("agt_2", &event.AgentDeactivated{AgentID: "agt_2"})
	asks("agt_2", "sub_2")
	var words []string
	for _, d := range found {
		require.Equal(t, KindDifference, d.Kind)
		words = append(words, d.Fields...)
	}
	require.Equal(t, []string{
		"credential: sub_2 is bound to agt_2, and the request was taken for agt_1", "credential: the request came under sub_3, and no operator bound it",
		"credential: the request came under sub_1 after its end", "credential: the request came under sub_2 after its end"}, words)
	require.EqualValues(t, 4, v.Result().Differences)
}
