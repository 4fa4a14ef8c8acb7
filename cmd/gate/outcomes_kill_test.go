package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"writegate/fixtures/faultproxy"
)

// TestAGateKilledAtAnyMessageSettlesItsWrite kills the gate with SIGKILL at each
// message of a write, to the database and back. The next gate finds what the log
// holds, asks the database, and comes to what is there.
func TestAGateKilledAtAnyMessageSettlesItsWrite(t *testing.T) {
	t.Parallel()
	stride := 17
	if os.Getenv(outcomesEverything) != "" {
		stride = 1
	}
	for _, marks := range []bool{false, true} {
		t.Run(fmt.Sprintf("marker %t", marks), func(t *testing.T) {
			t.Parallel()
			b := newBench(t, marks)
			b.become(calm) // one that loses patience would not come to the message at which it is to die
			tally := newTally()
			died, late := 0, 0
			for _, f := range []*form{formOf("write under a key"), formOf("write under an approval")} {
				for i, fault := range b.everyMessage(t, f) {
					if i%stride == 3%stride {
						if b.die(t, f, fault, tally) {
							died++
						} else {
							late++
						}
					}
				}
			}
			b.checkDisk(t)
			require.Less(t, late*4, died, "most messages of a write come each time")
			t.Log(tally)
		})
	}
}

func formOf(name string) *form {
	for i := range forms {
		if forms[i].name == name {
			return &forms[i]
		}
	}
	return nil
}

// serve starts a gate in a process of its own.
func (b *bench) serve(t testing.TB) *victim {
	t.Helper()
	v := b.spawn(t, fall{}, b.extra...)
	require.NotEmpty(t, v.base, "%s", &v.output)
	b.gate = &testGate{gateDir: b.gateDir, base: v.base, client: v.client}
	return v
}

// everyMessage lists a kill at each message of an undisturbed run.
func (b *bench) everyMessage(t testing.TB, f *form) (all []faultproxy.Fault) {
	t.Helper()
	v := b.serve(t)
	defer v.end(t)
	name := nextCase()
	request := b.prepare(t, f, name)
	b.proxy.Arm(faultproxy.Fault{})
	require.Equal(t, http.StatusOK, b.gate.query(t, request, f.params(name)...).status)
	for _, d := range []faultproxy.Direction{faultproxy.ToServer, faultproxy.ToClient} {
		for n := 1; n <= b.proxy.Count(d); n++ {
			all = append(all, faultproxy.Fault{Direction: d, N: n, Action: faultproxy.Call})
		}
	}
	return all
}

// die kills a gate in the middle of a case, and has the next one settle it. It
// reports whether the message came at which it was to die. When a connection is
// cleaned behind its use is not the same in each run: where the message does not
// come, the gate is killed behind its answer.
func (b *bench) die(t testing.TB, f *form, fault faultproxy.Fault, tally *tally) (came bool) {
	t.Helper()
	v := b.serve(t)
	name, what := nextCase(), fmt.Sprintf("%s: killed at message %d %s, marker %t", f.name, fault.N, fault.Direction, b.marks)
	request := b.prepare(t, f, name)
	fault.Do = v.kill
	b.proxy.Arm(fault)
	body, err := json.Marshal(request)
	require.NoError(t, err)
	id := "kill-" + name
	path := "/query"
	if f.key {
		path += "?idempotency_key=" + name
	}
	answer, err := v.try(http.MethodPost, path, string(body), "X-Request-Id: "+id)
	select {
	case <-v.ended:
		came = true
	case <-time.After(behindAnswer):
		v.kill()
	}
	v.await(t)
	b.proxy.Arm(faultproxy.Fault{})
	require.True(t, v.killed(), what)

	next := b.serve(t)
	r := reply{body: []byte("{}")}
	state, outcome := b.settle(t, b.executionOf(t, id))
	applied := b.applied(t, f, name)
	tally.note(true, reply{status: answer.status}, state, outcome)
	if err == nil && answer.status == http.StatusOK {
		assert.Equal(t, "1", applied, "%s: it was told to be applied", what)
	}
	b.mu.Lock()
	assert.LessOrEqual(t, b.passed, 1, what)
	assert.Zero(t, b.unproven, what)
	b.mu.Unlock()
	holds(t, f, r, state, outcome, applied, what)
	b.again(t, f, name, request, r, applied, what)
	next.end(t)
	require.NoError(t, next.err, "%s", &next.output)
	return came
}

// behindAnswer is how long a gate is given to come to its last messages.
const behindAnswer = 2 * time.Second

// executionOf finds what a request came to, "" where it was never dispatched.
func (b *bench) executionOf(t testing.TB, requestID string) string {
	t.Helper()
	var page struct {
		Items []struct {
			ExecutionID string `json:"execution_id"`
		}
	}
	unmarshal(t, b.gate.get(t, "/audit?event_type=execution_dispatched&request_id="+requestID).body, &page)
	if len(page.Items) == 0 {
		return ""
	}
	return page.Items[0].ExecutionID
}
