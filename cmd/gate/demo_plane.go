package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"syscall"
	"time"

	"writegate/http/controlplane"
)

// planeUser is who logs in to the dashboard of the demonstration.
const planeUser = "operator"

// planeScopes are what the Agents pages of the dashboard read, and what can be done there.
const planeScopes = "agents:read+policies:read+tools:read+metrics:read+events:read+agents:write+tokens:write+policies:apply"

// Bounds of the dashboard's start and end.
const (
	planeStart = 20 * time.Second
	planeEnd   = 5 * time.Second
)

// A demoPlane is the dashboard of the demonstration, a process of its own.
type demoPlane struct {
	address  string // as a browser reaches it
	password string
	cmd      *exec.Cmd
	ended    chan struct{}
}

// startPlane starts the dashboard for the gate at addr. Its password is made
// once and kept; its hash is made anew at each start.
func (a *app) startPlane(ctx context.Context, addr, dir, projectKey string) (*demoPlane, error) {
	passwordFile := filepath.Join(dir, "control-plane-password")
	password, err := keptSecret(passwordFile, randomText)
	if err != nil {
		return nil, err
	}
	hash, err := controlplane.HashPassword(password)
	if err != nil {
		return nil, fmt.Errorf("%s: %w; remove the file", passwordFile, err)
	}
	token, _ := lookUp(a.environ, "GATE_OPERATOR_TOKEN")
	listen, given := lookUp(a.environ, "CONTROL_PLANE_LISTEN_ADDR")
	if !given {
		listen = controlplane.DefaultListenAddr
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p := &demoPlane{password: password, cmd: exec.CommandContext(ctx, self, "control-plane"), ended: make(chan struct{})}
	format := "auto" // of both, since the dashboard's lines come through a pipe
	if given, ok := lookUp(a.environ, "GATE_LOG_FORMAT"); ok {
		format = given
	}
	p.cmd.Env = []string{"GATE_LOG_FORMAT=" + a.logFormat(format), "CONTROL_PLANE_LISTEN_ADDR=" + listen, "GATE_BACKEND_URL=http://" + reachable(addr), "GATE_OPERATOR_TOKEN=" + token,
		"CONTROL_PLANE_PROJECT_KEY=" + projectKey,
		"CONTROL_PLANE_ADMIN_USER=" + planeUser, "CONTROL_PLANE_ADMIN_PASSWORD_HASH=" + hash}
	p.cmd.Cancel = func() error { return p.cmd.Process.Signal(syscall.SIGTERM) }
	p.cmd.WaitDelay = planeEnd
	said, err := p.cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM} // else it keeps its address where this process is killed
	listening, started := make(chan string, 1), make(chan error, 1)
	go func() {
		runtime.LockOSThread() // the signal comes when the thread ends that started it
		defer runtime.UnlockOSThread()
		defer close(p.ended)
		err := p.cmd.Start()
		if started <- err; err != nil {
			return
		}
		a.relay(said, listening)
		_ = p.cmd.Wait() // how it ended stands in its own output
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return p, p.await(ctx, listening)
}

// planeListens is the dashboard's line with its address, in either format.
var planeListens = regexp.MustCompile(`the control plane is listening.*\baddress"?[=:]"?([^\s",]+)`)

// relay passes on what the dashboard writes, and picks the address that it
// listens on out of it.
func (a *app) relay(said io.Reader, listening chan<- string) {
	lines := bufio.NewScanner(said)
	for lines.Scan() {
		fmt.Fprintln(a.err, lines.Text())
		if found := planeListens.FindStringSubmatch(lines.Text()); found != nil && listening != nil {
			listening <- reachable(found[1])
			listening = nil
		}
	}
}

// await returns when the dashboard listens.
func (p *demoPlane) await(ctx context.Context, listening <-chan string) error {
	select {
	case address := <-listening:
		p.address = "http://" + address
		return nil
	case <-p.ended:
		return errors.New("it ended at once; another program may have its address (CONTROL_PLANE_LISTEN_ADDR)")
	case <-time.After(planeStart):
		return errors.New("it does not listen yet")
	case <-ctx.Done():
		return ctx.Err()
	}
}

// stop waits for the end of the dashboard, which comes with the context that it
// was started under.
func (p *demoPlane) stop() { <-p.ended }

// reachable is the address of a listener as somebody on this machine dials it.
func reachable(addr string) string {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return addr
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	return net.JoinHostPort(host, port)
}

// tourOfPlane is what the tour says of the dashboard.
func tourOfPlane(p *demoPlane, err error) string {
	if err != nil {
		return fmt.Sprintf("\nThe dashboard could not be started: %v\n", err)
	}
	return fmt.Sprintf("\nIn a browser: %s (name %s, password %s)\n", p.address, planeUser, p.password)
}
