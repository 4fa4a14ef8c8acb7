package classify

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// What one request may take of a child. CPU time is looked at every sample, and is
// twice what any text costs where memory is quick to get: the first long text of a
// child has all of its memory from the kernel, and on a slow virtual machine pays more
// for that than for its parse. The clock on the wall is for a child that does nothing:
// on a busy machine it says nothing of the text.
const (
	maxRequestCPU  = time.Second
	maxRequestWall = 20 * time.Second
	maxStartWall   = 10 * time.Second
	cpuSample      = 20 * time.Millisecond
)

// An overrunError tells that a child was at work for too long: cpu is what the
// request took of it, 0 when it was the wall clock that ran out.
type overrunError struct {
	cpu  time.Duration
	wall time.Duration
}

func (e *overrunError) Error() string {
	return fmt.Sprintf("parser child: %v of CPU in %v", e.cpu, e.wall)
}

// A child is one process, a parser or another. One goroutine at a time talks to it.
type child struct {
	process *os.Process
	to      *os.File
	from    *os.File
	gone    chan struct{} // closed when the process has been waited for
	end     error         // how it ended; to be read once gone is closed
}

// startChild starts a process and waits until it is ready.
func startChild(command *exec.Cmd, greeting any) (*child, error) {
	c, err := spawn(command)
	if err != nil {
		return nil, err
	}
	line := c.watch(maxStartWall, maxStartWall)
	err = writeJSON(line, greeting)
	if err == nil {
		err = readJSON(line, &ready{})
	}
	if err != nil {
		c.stop()
		return nil, fmt.Errorf("parser child: start: %w", err)
	}
	return c, nil
}

func spawn(cmd *exec.Cmd) (*child, error) {
	in, to, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	from, out, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, in.Close(), to.Close())
	}
	cmd.Stdin, cmd.Stdout = in, out
	cmd.Env = []string{}
	cmd.Dir = "/"
	// a group of its own: the terminal's interrupt is for the gate, which lets
	// requests finish
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	c := &child{to: to, from: from, gone: make(chan struct{})}
	err = c.run(cmd)
	if err = errors.Join(err, in.Close(), out.Close()); err != nil {
		return nil, errors.Join(err, to.Close(), from.Close())
	}
	return c, nil
}

// run starts the process on a thread that lives as long as it does: the kernel
// sends the death signal when the thread that made the child ends, not when the
// process does.
func (c *child) run(cmd *exec.Cmd) error {
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(c.gone)
		err := cmd.Start()
		c.process = cmd.Process
		started <- err
		if err == nil {
			c.end = cmd.Wait()
		}
	}()
	return <-started
}

// ask gives the child a request and lets read read its answer. An error means
// that the child is not to be used again.
func (c *child) ask(cpu, wall time.Duration, read func(io.Reader) error, request ...[]byte) error {
	line := c.watch(cpu, wall)
	if err := writeFrame(line, request...); err != nil {
		return err
	}
	return read(line)
}

// ended tells whether the process is gone.
func (c *child) ended() bool {
	select {
	case <-c.gone:
		return true
	default:
		return false
	}
}

// stop kills the process and waits for its end.
func (c *child) stop() {
	_ = c.process.Kill() // it may have ended already
	<-c.gone
	_ = c.to.Close()
	_ = c.from.Close()
}

// cpu gives the CPU time that the process has used, all threads together.
func (c *child) cpu() (time.Duration, error) {
	const schedulerClock = 2 // of a process: include/linux/posix-timers_types.h
	var now unix.Timespec
	err := unix.ClockGettime(int32(^c.process.Pid<<3|schedulerClock), &now)
	return time.Duration(now.Nano()), err
}

// A watchedLine is the pipes to a child during one request. It gives up as soon
// as the child has used more than its share.
type watchedLine struct {
	child   *child
	since   time.Time
	before  time.Duration // CPU time of the child when the request began
	maxCPU  time.Duration
	maxWall time.Duration
}

func (c *child) watch(cpu, wall time.Duration) *watchedLine {
	before, _ := c.cpu() // a child that has ended shows in its pipes
	return &watchedLine{child: c, since: time.Now(), before: before, maxCPU: cpu, maxWall: wall}
}

func (l *watchedLine) Read(p []byte) (int, error) {
	for {
		if err := l.child.from.SetReadDeadline(time.Now().Add(cpuSample)); err != nil {
			return 0, err
		}
		n, err := l.child.from.Read(p)
		if n > 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
			return n, err
		}
		if err := l.overrun(); err != nil {
			return 0, err
		}
	}
}

func (l *watchedLine) Write(p []byte) (int, error) {
	written := 0
	for {
		if err := l.child.to.SetWriteDeadline(time.Now().Add(cpuSample)); err != nil {
			return written, err
		}
		n, err := l.child.to.Write(p[written:])
		written += n
		if written == len(p) || !errors.Is(err, os.ErrDeadlineExceeded) {
			return written, err
		}
		if err := l.overrun(); err != nil {
			return written, err
		}
	}
}

// overrun looks at both clocks.
func (l *watchedLine) overrun() error {
	wall := time.Since(l.since)
	if now, err := l.child.cpu(); err == nil && now-l.before > l.maxCPU {
		return &overrunError{cpu: now - l.before, wall: wall}
	}
	if wall > l.maxWall {
		return &overrunError{wall: wall}
	}
	return nil
}
