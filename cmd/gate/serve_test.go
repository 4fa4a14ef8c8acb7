package main

import (
	"net"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"writegate/eventlog/event"
)

// An address that another program has is told with what to do, and before anything is
// written; one that is taken while the gate starts leaves a log with an end.
func TestAnAddressInUseLeavesNoStartWithoutAnEnd(t *testing.T) {
	t.Parallel()
	other, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer other.Close()
	taken, d := other.Addr().String(), newGateDir(t, nil)
	for _, setting := range []string{"GATE_HTTP_LISTEN_ADDR", "GATE_PGWIRE_LISTEN_ADDR"} {
		code, output := runGate(t, d.environ(append(wireSettings[:3:3], setting+"="+taken)...), "serve")
		require.Equal(t, exitUnavailable, code, output)
		require.Contains(t, output, setting+" is "+taken+", and another program listens there")
		require.Contains(t, output, "ss -ltnp")
		require.NotContains(t, output, "--help")
		require.NoFileExists(t, d.file("audit.wal"))
	}
	hash, err := planeHash()
	require.NoError(t, err)
	code, output := runGate(t, []string{"CONTROL_PLANE_LISTEN_ADDR=" + taken, "CONTROL_PLANE_MODE=mock", "CONTROL_PLANE_ADMIN_USER=ana", "CONTROL_PLANE_ADMIN_PASSWORD_HASH=" + hash}, "control-plane")
	require.Equal(t, exitUnavailable, code, output)
	require.Contains(t, output, "CONTROL_PLANE_LISTEN_ADDR is "+taken)

	require.NoError(t, other.Close())
	code, output = runGate(t, d.environ(append(wireSettings[:3:3], "GATE_HTTP_LISTEN_ADDR="+taken, "GATE_PGWIRE_LISTEN_ADDR="+taken)...), "serve")
	require.Equal(t, exitConfigured, code, output)
	require.Contains(t, output, "each needs an address of its own")
	_, port, err := net.SplitHostPort(taken)
	require.NoError(t, err)
	code, output = runGate(t, d.environ(append(wireSettings[:3:3], "GATE_HTTP_LISTEN_ADDR="+taken, "GATE_PGWIRE_LISTEN_ADDR=localhost:"+port)...), "serve") // its own, by another name
	require.Equal(t, exitUnavailable, code, output)
	events := d.events(t)
	require.Equal(t, event.TypeShutdown, events[len(events)-1].Type)
	d.checkDisk(t)

	code, output = runGate(t, d.environ("GATE_HTTP_LISTEN_ADDR=192.0.2.1:1"), "serve")
	require.Equal(t, exitConfigured, code, output)
	require.Contains(t, output, "where this machine can't listen")
}

// A gate that refuses on purpose is alive and not ready; one without its database protects.
func TestProbesTellAliveFromReady(t *testing.T) {
	t.Parallel()
	g := startGate(t, newGateDir(t, nil), "GATE_DATABASE_URL=postgres://app@127.0.0.1:1/shop")
	require.JSONEq(t, `{"status":"ok"}`, string(g.get(t, "/readyz").body))
	d := newGateDir(t, nil)
	require.NoError(t, os.RemoveAll(d.file("policies")))
	g = startGate(t, d)
	require.Equal(t, 503, g.get(t, "/health").status)
	for path, status := range map[string]int{"/livez": 200, "/readyz": 503} {
		require.Equal(t, status, g.get(t, path).status)
		require.Equal(t, status, g.do(t, "HEAD", path, nil).status)
	}
	require.JSONEq(t, `{"status":"ok"}`, string(g.get(t, "/livez").body))
	require.JSONEq(t, `{"status":"non-ok"}`, string(g.get(t, "/readyz").body))
}

func TestAShortOperatorTokenIsWarnedAbout(t *testing.T) {
	t.Parallel()
	const said = `the operator token labelled \"night\" is shorter than 24 characters`
	g := startGate(t, newGateDir(t, nil), "GATE_OPERATOR_TOKENS=night=hunter2")
	require.Contains(t, g.output.String(), said)
	require.NotContains(t, g.output.String(), "hunter2")
	require.NotContains(t, startGate(t, newGateDir(t, nil)).output.String(), "is shorter than")
}

func TestConnectionsLeaveFilesForTheRest(t *testing.T) {
	for _, c := range []struct {
		files                  uint64
		most, each             int
		fitting, fittingOfEach int
	}{
		{524288, 4096, 1024, 4096, 1024},
		{8192, 4096, 1024, 4096, 1024},
		{4096, 4096, 1024, 2048, 512},
		{1024, 4096, 1024, 512, 128},
		{1024, 4096, 10, 512, 10},
		{1024, 300, 300, 300, 300},
		{2, 4096, 1024, 1, 1},
		{1<<64 - 1, 1_000_000, 1024, 1_000_000, 1024}, // RLIM_INFINITY
	} {
		most, each := connsWithin(c.files, c.most, c.each)
		require.Equal(t, []int{c.fitting, c.fittingOfEach}, []int{most, each}, "%+v", c)
	}
}
