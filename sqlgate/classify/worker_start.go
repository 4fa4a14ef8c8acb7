package classify

import (
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// Limits that the parser child sets itself.
const (
	childStack  = 64 << 20 // soft limit; threads take it when the process is executed
	childMemory = 2 << 30  // address space: a parse of 256 KB needs less than 100 MB of it
)

// Arguments of a parser child. The first is its name in process lists; a
// process that has it as argument 0 is a child before its main function runs.
const (
	childName      = "gate-parser"
	childArgument  = "parse-worker"
	childConfined  = "confined"
	selfExecutable = "/proc/self/exe" // the running binary, even when its file has been replaced
)

// childEnvironment is all that a parser child has of an environment: nothing is
// inherited. Half of its address space is the Go runtime's; without these two
// each of a machine's processors could start a thread, with 64 MiB of stack and
// 64 MiB for malloc, before the first line of ours runs. What a parse has freed stays with the
// child for the next one, since asking the kernel for it anew is half the cost of a long text
// (BenchmarkHostileTexts) and more where memory is slow to come by.
var childEnvironment = []string{"GOMAXPROCS=1", "GLIBC_TUNABLES=glibc.malloc.arena_max=1:glibc.malloc.mmap_threshold=33554432:glibc.malloc.trim_threshold=134217728"}

// A process under the child's name is the parser child, whatever binary it is:
// so every program with this package in it, tests included, can start its own
// children by starting itself. This file's name sorts behind those with tables
// to fill.
func init() {
	serveIfChild(childName, childArgument, Worker)
}

// serveIfChild does not return in a process that was started as a child of this
// name.
func serveIfChild(name, argument string, serve func(io.Reader, io.Writer) error) {
	if len(os.Args) < 2 || os.Args[0] != name || os.Args[1] != argument {
		return
	}
	if err := beChild(name, argument, serve); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// ParseWorker is the main function of a parser child (gate parse-worker).
func ParseWorker() error { return beChild(childName, childArgument, Worker) }

// beChild confines its own process, executes itself anew once so that the limits
// hold from the first thread on, and then serves requests on standard input and
// output.
func beChild(name, argument string, serve func(io.Reader, io.Writer) error) error {
	if os.Args[0] != name || os.Args[len(os.Args)-1] != childConfined {
		return fmt.Errorf("classify: the child %s cannot be confined: %w", name, confine(name, argument))
	}
	if err := dieWithParent(); err != nil {
		return err
	}
	return serve(os.Stdin, os.Stdout)
}

// dieWithParent asks for SIGKILL when the thread that started this process
// ends. The kernel keeps the wish with the thread that says it and over an
// execution by that thread; the calling goroutine stays on its thread.
func dieWithParent() error {
	runtime.LockOSThread()
	return unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0)
}

// confine gives up what a child does not need and executes the binary again
// under its new limits. It returns only with an error.
func confine(name, argument string) error {
	if err := dieWithParent(); err != nil {
		return err
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	if err := limit(unix.RLIMIT_CORE, 0, true); err != nil {
		return err
	}
	if err := limit(unix.RLIMIT_STACK, childStack, false); err != nil {
		return err
	}
	if !raceDetector {
		if err := limit(unix.RLIMIT_AS, childMemory, true); err != nil {
			return err
		}
	}
	if err := closeDescriptors(); err != nil {
		return err
	}
	return syscall.Exec(selfExecutable, []string{name, argument, childConfined}, childEnvironment)
}

// limit sets a resource limit to at most n, as far as the hard limit allows;
// hard lowers that as well.
func limit(resource int, n uint64, hard bool) error {
	var r unix.Rlimit
	if err := unix.Getrlimit(resource, &r); err != nil {
		return err
	}
	r.Cur = min(n, r.Max)
	if hard {
		r.Max = r.Cur
	}
	return unix.Setrlimit(resource, &r)
}

// closeDescriptors lets the coming execution close all but the three standard
// descriptors, whoever left them open.
func closeDescriptors() error {
	open, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return err
	}
	for _, d := range open {
		if fd, err := strconv.Atoi(d.Name()); err == nil && fd > 2 {
			unix.CloseOnExec(fd)
		}
	}
	return nil
}
