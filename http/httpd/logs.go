package httpd

import (
	"context"
	"log/slog"
	"maps"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// LogCapacity is how many operational entries are kept (spec/decisions.md part 11).
const LogCapacity = 10_000

// maxLogText bounds one text of an entry, so that the buffer's memory is bounded too.
const maxLogText = 1024

// maxAttribute bounds an attribute, of which an entry has several.
const maxAttribute = 512

// A LogEntry is one line of GET /logs. The attributes of a log line that shownAttributes
// does not name stay in the operator's own output: causes and addresses are in no answer.
type LogEntry struct {
	Timestamp time.Time
	Level     slog.Level
	Source    string
	Message   string
	ErrorID   string
	RequestID string
	TraceID   string // of the caller's traceparent
	// Attributes are those of shownAttributes that the line has.
	Attributes map[string]string

	number uint64
}

// Cursor begins a page with this entry.
func (e *LogEntry) Cursor() string { return strconv.FormatUint(e.number, 10) }

// A LogBuffer is the ring of recent entries. Numbers of entries run from 1 and
// make cursors that stay true while new ones come in.
type LogBuffer struct {
	mu      sync.Mutex
	entries []LogEntry // entry n is at (n-1) % cap
	last    uint64     // number of the newest entry; 0 = none
}

// NewLogBuffer makes a buffer for capacity entries, at least one.
func NewLogBuffer(capacity int) *LogBuffer {
	return &LogBuffer{entries: make([]LogEntry, max(1, capacity))}
}

func (b *LogBuffer) add(e LogEntry) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e.number = b.last + 1
	b.entries[b.last%uint64(len(b.entries))] = e
	b.last++
}

// A LogFilter selects entries. Source "" is any.
type LogFilter struct {
	Level  slog.Level // at least
	Source string
}

// Entries gives a page of what is still in the ring. Its error is a fault for a
// cursor that is none.
func (b *LogBuffer) Entries(f LogFilter, page Page) (list []LogEntry, next string, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	at, err := b.start(page)
	if err != nil {
		return nil, "", err
	}
	for ; at > b.oldest() && at <= b.last; at = step(at, page.Asc) {
		e := &b.entries[(at-1)%uint64(len(b.entries))]
		if e.Level < f.Level || (f.Source != "" && e.Source != f.Source) {
			continue
		}
		if len(list) == page.Limit {
			return list, e.Cursor(), nil
		}
		list = append(list, *e)
	}
	return list, "", nil
}

// oldest is the number before the first entry that is still there.
func (b *LogBuffer) oldest() uint64 { return b.last - min(b.last, uint64(len(b.entries))) }

// start is the number of the first entry of a page. One that has left the ring
// since gives way to the oldest that is there.
func (b *LogBuffer) start(page Page) (uint64, error) {
	if page.Cursor == "" {
		if page.Asc {
			return b.oldest() + 1, nil
		}
		return b.last, nil
	}
	at, err := strconv.ParseUint(page.Cursor, 10, 64)
	if err != nil || at == 0 || at > b.last {
		return 0, BadCursor()
	}
	if page.Asc {
		at = max(at, b.oldest()+1)
	}
	return at, nil
}

func step(at uint64, asc bool) uint64 {
	if asc {
		return at + 1
	}
	return at - 1
}

// Handler is a slog.Handler that keeps each record in the buffer and hands it
// on to output.
func (b *LogBuffer) Handler(output slog.Handler) slog.Handler {
	return &logHandler{buffer: b, output: output}
}

// logHandler picks the attributes of an entry out of a record and out of those
// the logger was made with. Attributes in a group are the caller's own affair.
type logHandler struct {
	buffer  *LogBuffer
	output  slog.Handler
	preset  LogEntry
	grouped bool
}

// Enabled implements slog.Handler: the output's level is the buffer's too.
func (h *logHandler) Enabled(ctx context.Context, level slog.Level) bool {
	return h.output.Enabled(ctx, level)
}

// Handle implements slog.Handler.
func (h *logHandler) Handle(ctx context.Context, r slog.Record) error {
	e := h.preset
	e.Timestamp, e.Level, e.Message = r.Time.UTC(), r.Level, clip(r.Message, maxLogText)
	if !h.grouped {
		r.Attrs(func(a slog.Attr) bool { e.pick(a); return true })
	}
	h.buffer.add(e)
	return h.output.Handle(ctx, r)
}

// shownAttributes are those that GET /logs shows, and whether to everybody: ids, versions,
// states and numbers. Findings about the database and reasons are for operators.
var shownAttributes = map[string]bool{
	"found": false, "role": false, "limits": false, "reason": false, "until": false,

	"method": true, "path": true, "status": true, "execution_id": true, "execution_state": true, "outcome": true, "basis": true, "step": true, "incident": true,
	"policy_version": true, "previous": true, "rollback": true, "by": true, "mode": true, "version": true, "side": true, "expires_at": true, "setting": true,
	"seq": true, "last_seq": true, "statements": true, "sessions": true, "approvals": true, "agents": true, "tokens": true, "pool": true, "wire_session": true,
	"backend_pid": true, "not_written_before": true,
}

// Open gives the attributes that everybody may see.
func (e *LogEntry) Open() map[string]string {
	open := maps.Clone(e.Attributes)
	maps.DeleteFunc(open, func(name, _ string) bool { return !shownAttributes[name] })
	return open
}

func (e *LogEntry) pick(a slog.Attr) {
	if _, ok := shownAttributes[a.Key]; ok {
		e.Attributes = maps.Clone(e.Attributes) // a logger's own are shared by its lines
		if e.Attributes == nil {
			e.Attributes = make(map[string]string)
		}
		e.Attributes[a.Key] = clip(a.Value.String(), maxAttribute)
	}
	switch a.Key {
	case "source":
		e.Source = clip(a.Value.String(), maxLogText)
	case "error_id":
		e.ErrorID = clip(a.Value.String(), maxLogText)
	case "request_id":
		e.RequestID = clip(a.Value.String(), maxLogText)
	case "trace_id":
		e.TraceID = clip(a.Value.String(), maxLogText)
	}
}

// WithAttrs implements slog.Handler.
func (h *logHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	c := *h
	c.output = h.output.WithAttrs(attrs)
	if !h.grouped {
		for _, a := range attrs {
			c.preset.pick(a)
		}
	}
	return &c
}

// WithGroup implements slog.Handler.
func (h *logHandler) WithGroup(name string) slog.Handler {
	c := *h
	c.output = h.output.WithGroup(name)
	c.grouped = c.grouped || name != ""
	return &c
}

// linesPerMinute bounds the log lines of a client at each level, and of a message
// where no client is named. What makes a line may cost its client nothing, and
// the log may lie on the disk of the events.
const linesPerMinute = 1200

// BoundLines is a slog.Handler that hands on to output what is within 1,200 lines
// a minute of one client at one level (the attribute client), or of one message
// without a client. The rest is counted, and what output fails to write: the next
// line that is handed on has the number as not_written_before.
func BoundLines(output slog.Handler) slog.Handler {
	limit, _ := NewLimiter(linesPerMinute, linesPerMinute, time.Now) // fails for rates out of range alone
	return &boundedLines{output, limit, new(atomic.Int64)}
}

type boundedLines struct {
	slog.Handler
	limit     *Limiter
	unwritten *atomic.Int64 // lines since the last one that was written
}

// Handle implements slog.Handler.
func (h *boundedLines) Handle(ctx context.Context, r slog.Record) error {
	holder := r.Message
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == "client" {
			holder = HolderOf(a.Value.String())
		}
		return a.Key != "client"
	})
	if _, ok := h.limit.Allow(r.Level.String() + " " + holder); !ok {
		h.unwritten.Add(1)
		return nil
	}
	n := h.unwritten.Swap(0)
	if n > 0 {
		r = r.Clone()
		r.AddAttrs(slog.Int64("not_written_before", n))
	}
	err := h.Handler.Handle(ctx, r)
	if err != nil { // the output took neither the line nor the number
		h.unwritten.Add(n + 1)
	}
	return err
}

// WithAttrs implements slog.Handler.
func (h *boundedLines) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &boundedLines{h.Handler.WithAttrs(attrs), h.limit, h.unwritten}
}

// WithGroup implements slog.Handler.
func (h *boundedLines) WithGroup(name string) slog.Handler {
	return &boundedLines{h.Handler.WithGroup(name), h.limit, h.unwritten}
}
