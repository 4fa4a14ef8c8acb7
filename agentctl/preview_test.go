package agentctl

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"writegate/commands/fault"
	"writegate/eventlog"
	"writegate/eventlog/event"
	"writegate/eventlog/frame/frametest"
	"writegate/projections"
)

// A preview that has no more time says up to where it got, one that has looked at all
// does not; and each project has a turn of its own.
func TestAPreviewTakesItsTurnAndEndsInTime(t *testing.T) {
	w := begin(t)
	agent := w.agent(t, "default")
	policy := w.policy(t, "default", "block", `event.type == "tool_call"`, 1)
	for i := range 3 {
		w.now.Add(int64(time.Second))
		list := sent(5, agent)
		for k := range list {
			id := fmt.Sprint(i, "-", k)
			list[k].Input.ID = &id
		}
		_, err := w.Telemetry(t.Context(), key("default"), list)
		require.NoError(t, err)
	}
	ask := func(ctx context.Context) (*ApplicationBody, error) {
		answer, err := w.PreviewApply(ctx, key("default"), policy, &ApplyInput{AgentID: agent})
		body, _ := answer.Body.(*ApplicationBody)
		return body, err
	}
	body, err := ask(t.Context())
	require.NoError(t, err)
	require.Equal(t, &PreviewBody{Window: "24h", Events: 15, EventsMatching: 15}, body.Preview)
	require.Empty(t, body.Warnings)

	over, cancel := context.WithDeadline(t.Context(), time.Now())
	defer cancel()
	var p projections.AgentPolicy
	require.NoError(t, w.view(t.Context(), func(view *projections.View) (err error) {
		p, _, err = view.AgentPolicy("default", policy)
		return err
	}))
	part, until, err := w.preview(over, "default", agent, &p, w.Now())
	require.NoError(t, err)
	require.Equal(t, w.Now().Add(-previewWindow), until, "nothing was looked at")
	require.Zero(t, part.EventsMatching)
	gone, leave := context.WithCancel(t.Context())
	leave()
	_, _, err = w.preview(gone, "default", agent, &p, w.Now())
	require.Error(t, err, "nobody is left to be told")

	done, err := w.looking.take(t.Context(), "default", previewsOfOne)
	require.NoError(t, err)
	_, err = ask(untilItWaits(t, w.looking, "default", previewsOfOne+1))
	require.Equal(t, fault.AuditUnavailable, fault.CodeOf(err))
	require.ErrorContains(t, err, "waited for its turn")
	done()
	_, err = ask(t.Context())
	require.NoError(t, err)
	require.Empty(t, w.looking.projects)
}

// A preview reads the log at hand. Where that one began in the window, behind another
// one, the counts are not those of the whole of it.
func TestAPreviewSaysThatALogBeforeIsLeftOut(t *testing.T) {
	disk := frametest.NewMem()
	require.NoError(t, disk.MkdirAll("/data"))
	o := eventlog.Options{Path: "/data/audit.wal", FS: disk, Origin: "test", Now: func() time.Time { return noon }}
	l, _, err := eventlog.Open(t.Context(), o)
	require.NoError(t, err)
	start := event.Startup{Version: "1", Profile: "development", Fsync: "required", VerifyOnStart: "active", OnTornTail: "record", Engine: map[string]string{}}
	_, err = l.Append(t.Context(), eventlog.Group{Drafts: []event.Draft{event.New(noon, event.Context{Actor: "system", Operation: "start", Mode: "enforce"}, &start)}})
	require.NoError(t, err)
	require.NoError(t, l.Close(t.Context()))
	_, err = eventlog.Retire(t.Context(), o, eventlog.Successor{Reason: "a test", Mode: "enforce", Start: start})
	require.NoError(t, err)

	w := beginOn(t, disk)
	agent, policy := w.agent(t, "default"), w.policy(t, "default", "block", `event.type == "tool_call"`, 1)
	warnings := func() []Warning {
		answer, err := w.PreviewApply(t.Context(), key("default"), policy, &ApplyInput{AgentID: agent})
		require.NoError(t, err)
		return answer.Body.(*ApplicationBody).Warnings
	}
	w.now.Add(int64(previewWindow - time.Hour))
	found := warnings()
	require.Len(t, found, 1)
	require.Equal(t, "preview_incomplete", found[0].Code)
	require.Contains(t, found[0].Message, event.Timestamp(noon))
	w.now.Add(int64(time.Hour))
	require.Empty(t, warnings(), "the window lies in this log")
}
