package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
	"unicode"

	"golang.org/x/term"
)

// Bounds of what a service says on standard error.
const (
	linesWaiting = 1024        // lines, until they are written
	lastLines    = time.Second // an end waits as long for them
)

var errLineLeftOut = errors.New("standard error takes no more lines")

// A lineQueue stands before standard error, which may be a pipe that nobody reads:
// whoever has a line goes on at once, and one goroutine writes them in their order. A
// line that finds no place is an error, which has it counted; those that could not be
// written are told before the next one that can. A panic and a kill lose the lines that wait.
type lineQueue chan queuedLine

type queuedLine struct {
	text    []byte
	written chan struct{} // closed when all lines before it are; nil where nobody asks
}

func newLineQueue(out io.Writer) lineQueue {
	q := make(lineQueue, linesWaiting)
	go func() {
		lost, torn := 0, "" // torn ends a line that was written in part
		for line := range q {
			if line.written != nil {
				close(line.written)
				continue
			}
			text := line.text
			if lost > 0 {
				told := fmt.Sprintf("%s{\"level\":\"ERROR\",\"msg\":\"lines before this one could not be written\",\"lines\":%d}\n", torn, lost)
				text = append([]byte(told), text...)
			}
			switch n, err := out.Write(text); {
			case err == nil:
				lost, torn = 0, ""
			case n > 0:
				lost, torn = lost+1, "\n"
			default:
				lost++
			}
		}
	}()
	return q
}

// Write implements io.Writer.
func (q lineQueue) Write(line []byte) (int, error) {
	select {
	case q <- queuedLine{text: bytes.Clone(line)}:
		return len(line), nil
	default:
		return 0, errLineLeftOut
	}
}

// flush waits until what was written before it is out, for a second at most.
func (q lineQueue) flush() {
	written, end := make(chan struct{}), time.After(lastLines)
	select {
	case q <- queuedLine{written: written}:
	case <-end:
		return
	}
	select {
	case <-written:
	case <-end:
	}
}

// queueLines is for commands that serve: they go on where nobody reads their lines, and
// where the reader has ended, which by default ends who writes to it (SIGPIPE). A writer
// that is no file, as tests have them, waits for nobody.
func (a *app) queueLines() {
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) // Ignore would hold for the programs that this one starts, too
	if file, ok := a.err.(*os.File); ok {
		a.onTerminal = term.IsTerminal(int(file.Fd()))
		a.lines = newLineQueue(file)
		a.err = a.lines
	}
}

// flushLines waits for the lines of a command that served.
func (a *app) flushLines() {
	if a.lines != nil {
		a.lines.flush()
	}
}

// logFormat is GATE_LOG_FORMAT: auto is text on a terminal, and json elsewhere.
func (a *app) logFormat(setting string) string {
	if setting == "auto" {
		return map[bool]string{true: "text", false: "json"}[a.onTerminal]
	}
	return setting
}

// lineHandler writes the lines of a service.
func (a *app) lineHandler(setting string) slog.Handler {
	if a.logFormat(setting) == "json" {
		return slog.NewJSONHandler(a.err, nil)
	}
	h := &textLines{out: a.err, mu: new(sync.Mutex), attributes: new(bytes.Buffer)}
	h.Handler = slog.NewTextHandler(h.attributes, &slog.HandlerOptions{ReplaceAttr: func(groups []string, attr slog.Attr) slog.Attr {
		if len(groups) == 0 && (attr.Key == slog.TimeKey || attr.Key == slog.LevelKey || attr.Key == slog.MessageKey) {
			return slog.Attr{}
		}
		return attr
	}})
	return h
}

// textLines writes lines for people: moment, level and message, then the attributes as
// slog's own text handler has them.
type textLines struct {
	slog.Handler // of the attributes alone
	out          io.Writer
	mu           *sync.Mutex // guards attributes
	attributes   *bytes.Buffer
}

// Handle implements slog.Handler.
func (h *textLines) Handle(ctx context.Context, r slog.Record) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.attributes.Reset()
	if err := h.Handler.Handle(ctx, r); err != nil {
		return err
	}
	message := r.Message
	if strings.ContainsFunc(message, func(c rune) bool { return !unicode.IsPrint(c) }) { // what would steer the terminal
		message = strconv.Quote(message)
	}
	line := fmt.Sprintf("%s %-5s %s  %s", r.Time.Format(time.DateTime), r.Level, message, h.attributes)
	_, err := io.WriteString(h.out, strings.TrimRight(line, " \n")+"\n") // in one piece
	return err
}

// WithAttrs implements slog.Handler.
func (h *textLines) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &textLines{h.Handler.WithAttrs(attrs), h.out, h.mu, h.attributes}
}

// WithGroup implements slog.Handler.
func (h *textLines) WithGroup(name string) slog.Handler {
	return &textLines{h.Handler.WithGroup(name), h.out, h.mu, h.attributes}
}
