package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The gates of the kill tests are processes of their own: this test binary with
// a role in its environment.
const (
	crashRole   = "CRASH_ROLE"   // "gate": serve until killed
	crashStep   = "CRASH_STEP"   // where to die, see death
	crashLinger = "CRASH_LINGER" // how long to stand still there before
)

// lingering is how long a gate may stand still where it dies while the rest of
// it goes on: whatever it tells its clients too early they hear meanwhile.
const lingering = 30 * time.Millisecond

// A death says where a gate kills itself: NAME#N at the N-th passing of the
// named step since the process began, NAME@N since it listens. "" is nowhere.
type death string

func (d death) parse() (step string, nth int64, serving bool) {
	at := strings.IndexAny(string(d), "#@")
	if at < 0 {
		return "", 0, false
	}
	nth, err := strconv.ParseInt(string(d[at+1:]), 10, 64)
	if err != nil {
		return "", 0, false
	}
	return string(d[:at]), nth, d[at] == '@'
}

func (d death) step() string {
	step, _, _ := d.parse()
	return step
}

// playCrashRole makes this process a gate if its environment says so.
func playCrashRole() {
	if os.Getenv(crashRole) != "gate" {
		return
	}
	step, nth, whenServing := death(os.Getenv(crashStep)).parse()
	linger, _ := time.ParseDuration(os.Getenv(crashLinger)) // empty is not at all
	var serving atomic.Bool
	var passed atomic.Int64
	die := func(name string) {
		if name == step && (serving.Load() || !whenServing) && passed.Add(1) == nth {
			time.Sleep(linger)
			killSelf()
		}
	}
	go func() { // a gate whose test has ended ends too
		_, _ = io.Copy(io.Discard, os.Stdin)
		killSelf()
	}()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	a := &app{
		streams: streams{strings.NewReader(""), io.Discard, os.Stderr}, environ: os.Environ(), step: die,
	}
	wire := "" // comes first
	a.wireReady = func(addr string) { wire = addr }
	a.ready = func(addr string) { serving.Store(true); fmt.Println(addr, wire) }
	code := a.run(ctx, []string{"serve"})
	stop()
	os.Exit(code)
}

// killSelf is kill -9. The signal is on its way when the call returns, so the
// caller must go no further.
func killSelf() {
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {}
}

// A victim is a gate in a process of its own.
type victim struct {
	cmd    *exec.Cmd
	base   string // "" until it listens, and when it died before
	wire   string // address of its wire listener, where it has one
	output lockedBuffer
	ended  chan struct{} // closed when the process is gone
	err    error         // how it went; valid once ended is closed
	client *http.Client
	kept   *receiptBook // nil: nobody keeps receipts
	signs  bool
}

// spawn starts a gate in the folder, to fall as told, and waits until it listens
// or is gone.
func (d gateDir) spawn(t testing.TB, f fall, extra ...string) *victim {
	t.Helper()
	v := &victim{cmd: exec.Command(os.Args[0]), ended: make(chan struct{}), client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 32}}}
	v.cmd.Env = append(d.environ(extra...), "GATE_DB_POOL_RESERVED=0", crashRole+"=gate", crashStep+"="+string(f.at)) // all its clients are of one address
	if f.lingers {
		v.cmd.Env = append(v.cmd.Env, crashLinger+"="+lingering.String())
	}
	v.kept, v.signs = d.kept, signs(v.cmd.Env)
	d.kept.trust(v.cmd.Env)
	v.cmd.Stderr = &v.output
	alive, err := v.cmd.StdinPipe()
	require.NoError(t, err)
	out, err := v.cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, v.cmd.Start())
	listens := make(chan string, 1)
	go func() {
		lines := bufio.NewScanner(out)
		if lines.Scan() {
			listens <- lines.Text()
		}
		_, _ = io.Copy(io.Discard, out)
		v.err = v.cmd.Wait()
		_ = alive.Close()
		close(v.ended)
	}()
	t.Cleanup(func() { v.kill(); <-v.ended })
	if f.after > 0 {
		timer := time.AfterFunc(f.after, v.kill)
		t.Cleanup(func() { timer.Stop() })
	}
	select {
	case addr := <-listens:
		addr, v.wire, _ = strings.Cut(addr, " ")
		v.base = "http://" + addr
	case <-v.ended:
	case <-time.After(startPatience):
		t.Fatalf("the gate neither serves nor ends:\n%s", &v.output)
	}
	return v
}

// kill is kill -9. A gate that is gone already stays gone.
func (v *victim) kill() { _ = v.cmd.Process.Kill() }

// ask asks the gate to end; it may have died meanwhile.
func (v *victim) ask() { _ = v.cmd.Process.Signal(syscall.SIGTERM) }

// end asks the gate to end and waits for it.
func (v *victim) end(t testing.TB) {
	t.Helper()
	v.ask()
	v.await(t)
}

func (v *victim) await(t testing.TB) {
	t.Helper()
	select {
	case <-v.ended:
	case <-time.After(startPatience):
		t.Fatalf("the gate did not end:\n%s", &v.output)
	}
	v.client.CloseIdleConnections()
}

// killed reports whether the ended gate died of kill -9.
func (v *victim) killed() bool {
	var exit *exec.ExitError
	return errors.As(v.err, &exit) && exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL
}

// try sends a request; an error means that the gate gave no answer.
func (v *victim) try(method, path, body string, headers ...string) (reply, error) {
	request, err := http.NewRequest(method, v.base+path, strings.NewReader(body))
	if err != nil {
		return reply{}, err
	}
	if body != "" {
		request.Header.Set("Content-Type", "application/json")
	}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		request.Header.Set(name, value)
	}
	response, err := v.client.Do(request)
	if err != nil {
		return reply{}, err
	}
	defer response.Body.Close()
	read, err := io.ReadAll(response.Body)
	r := reply{response.StatusCode, response.Header, read}
	if err == nil {
		v.kept.mustKeep(r, v.signs, strings.Contains(body, `"latency"`))
	}
	return r, err
}

// awaitBackends waits until the database is rid of the connections of a gate
// that died: what they were doing is done or undone only then.
func (d gateDir) awaitBackends(t testing.TB) {
	t.Helper()
	const others = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
	require.Eventually(t, func() bool { return d.value(t, others) == "0" }, startPatience, pollEvery)
}

// copyTo copies what a dead gate left, so that looking at it changes nothing.
func (d gateDir) copyTo(t testing.TB, to string) gateDir {
	t.Helper()
	require.NoError(t, os.CopyFS(to, os.DirFS(d.path)))
	require.NoError(t, os.Chmod(to, 0o700))
	return gateDir{path: filepath.Clean(to), database: d.database}
}
