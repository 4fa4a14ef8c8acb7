package commands

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"writegate/commands/fault"
	"writegate/eventlog/event"
	"writegate/projections"
)

func TestAChangeIsDecidedUnderItsLocksAndSeenByTheNextView(t *testing.T) {
	w := begin(t, setup{})
	register := func(id string) ([]EventRef, error) {
		done, err := w.Change(t.Context(), Change{Keys: []string{AgentKey("default", id)},
			Decide: func(view *projections.View, now time.Time) ([]event.Draft, error) {
				if _, known, err := view.Agent("p", id); known || err != nil {
					return nil, err
				}
				return []event.Draft{event.New(now, event.Context{Project: "p", AgentID: id}, &event.AgentRegistered{Agent: event.Agent{AgentID: id, Status: event.AgentActive}})}, nil
			}})
		return done.Events, err
	}
	first, err := register("agt_1")
	require.NoError(t, err)
	require.Len(t, first, 1)
	again, err := register("agt_1")
	require.NoError(t, err)
	require.Empty(t, again, "nothing to change leaves no event")
}

func TestAChangeThatIsRefusedLeavesNothing(t *testing.T) {
	w := begin(t, setup{})
	before := w.log.Head().Seq
	_, err := w.Change(t.Context(), Change{Decide: func(*projections.View, time.Time) ([]event.Draft, error) {
		return nil, fault.New(fault.NotFound, "no")
	}})
	require.Equal(t, fault.NotFound, fault.CodeOf(err))
	_, err = w.Change(t.Context(), Change{Decide: func(*projections.View, time.Time) ([]event.Draft, error) {
		return nil, errors.New("broken")
	}})
	require.Equal(t, fault.Internal, fault.CodeOf(err))
	require.Equal(t, before, w.log.Head().Seq)
}
