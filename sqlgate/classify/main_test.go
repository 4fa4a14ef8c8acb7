package classify

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"testing"
	"time"
)

// The test binary plays the processes that tests need: started with a role as
// its first argument it does as the role says and runs no test.
const roleArgument = "role:"

func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		if play, ok := roles[os.Args[1]]; ok {
			play(os.Args[2:])
			os.Exit(0)
		}
	}
	os.Exit(m.Run())
}

// roleCommand is the command line of this binary in a role.
func roleCommand(role string, arguments ...string) []string {
	return append([]string{selfExecutable, roleArgument + role}, arguments...)
}

var roles = map[string]func([]string){
	roleArgument + "gate":        playGate,
	roleArgument + "worker":      playWorker,
	roleArgument + "short stack": playShortStack,
	roleArgument + "vanish":      func([]string) {},
	roleArgument + "silent":      func([]string) { _, _ = io.Copy(io.Discard, os.Stdin) },
	roleArgument + "garbage":     func([]string) { fmt.Print("no frame at all, but long enough to look like one") },
}

// playWorker is a child that greets as it should and then fails in the way that
// its argument names, at a step of its first request.
func playWorker(arguments []string) {
	in := bufio.NewReader(os.Stdin)
	if _, err := readFrame(in); err != nil {
		return
	}
	if writeJSON(os.Stdout, ready{}) != nil {
		return
	}
	failures[arguments[0]](in)
}

// A whole reply, for those who break it.
func someReply() []byte {
	var b bytes.Buffer
	_ = writeJSON(&b, newReply(Classification{QueryType: "SELECT"}, nil))
	return b.Bytes()
}

var failures = map[string]func(*bufio.Reader){
	"before the request":  func(in *bufio.Reader) { _, _ = in.Peek(1) },
	"inside the request":  func(in *bufio.Reader) { _, _ = io.CopyN(io.Discard, in, 3) },
	"after the request":   func(in *bufio.Reader) { _, _ = readFrame(in) },
	"inside the length":   func(in *bufio.Reader) { _, _ = readFrame(in); _, _ = os.Stdout.Write(someReply()[:2]) },
	"inside the reply":    func(in *bufio.Reader) { _, _ = readFrame(in); _, _ = os.Stdout.Write(someReply()[:20]) },
	"with an empty reply": func(in *bufio.Reader) { _, _ = readFrame(in); _ = writeFrame(os.Stdout) },
	"with no content":     func(in *bufio.Reader) { _, _ = readFrame(in); _ = writeJSON(os.Stdout, reply{}) },
	"with other JSON":     func(in *bufio.Reader) { _, _ = readFrame(in); _ = writeFrame(os.Stdout, []byte(`[1]`)) },
	"with an enormous length": func(in *bufio.Reader) {
		_, _ = readFrame(in)
		_, _ = os.Stdout.Write(binary.BigEndian.AppendUint32(nil, 1<<31))
	},
	"spinning": func(in *bufio.Reader) {
		_, _ = readFrame(in)
		for {
		}
	},
	"spinning unread": func(*bufio.Reader) {
		for {
		}
	},
	"sleeping": func(in *bufio.Reader) {
		_, _ = readFrame(in)
		select {}
	},
}

// playGate is a process with a child of its own: it prints the child's id and
// waits until it is killed.
func playGate([]string) {
	c, err := New(Config{})
	if err != nil {
		return
	}
	place, err := c.children.free.take(context.Background(), "", time.Minute)
	if err != nil || c.children.start(place) != nil {
		return
	}
	_ = json.NewEncoder(os.Stdout).Encode(place.child.process.Pid)
	_, _ = io.Copy(io.Discard, os.Stdin)
}
