package eventlog

import (
	"cmp"
	"crypto/rand"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"time"

	"writegate/eventlog/checkpoint"
	"writegate/eventlog/frame"
)

// Values of Options.Fsync (GATE_AUDIT_FSYNC).
const (
	FsyncRequired = "required"
	FsyncOff      = "off" // for the lab: nothing is durable, and durable_off says so
)

// Values of Options.OnTornTail (GATE_AUDIT_ON_TORN_TAIL).
const (
	TornTailRecord = "record"
	TornTailRefuse = "refuse"
)

// Values of Options.VerifyOnStart (GATE_AUDIT_VERIFY_ON_START).
const (
	VerifyActive = "active"
	VerifyFull   = "full"
)

// Limits of a group (design/eventlog.md part 5).
const (
	MaxGroupEvents = 1024
	MaxGroupBytes  = 8 << 20
)

// Soft caps of a batch: it stops growing there, but a group is never split and
// may be larger than either.
const (
	batchFrames = 1024
	batchBytes  = 256 << 10
)

const (
	defaultSlowSync  = 5 * time.Second
	defaultStuckSync = 20 * time.Second
	lockWait         = 10 * time.Second
)

// Options say where a log lies and how it is kept. Only Path is required.
type Options struct {
	Path      string // W, the active segment
	JSONLPath string // "" writes no JSONL projection
	IndexPath string // "" keeps the sparse index in memory alone

	FS               frame.FS // nil is the host's file system
	Fsync            string   // FsyncRequired when empty
	OnTornTail       string   // TornTailRecord when empty
	VerifyOnStart    string   // VerifyActive when empty
	PreallocateBytes int64    // 0 is off; the setting's default is 16 MiB

	// A segment is sealed, and the next one begun, by the first batch that finds
	// it this long, or its first event this old. 0 is off.
	SegmentBytes int64
	SegmentAge   time.Duration

	AllowNetworkFS bool
	Origin         string // read when a log is created; "" is gate/<log_id>

	// SigningKey signs evidence; nil signs nothing. The header of a log that is
	// created names it.
	SigningKey *checkpoint.PrivateKey

	// Projection is the anchor that the projections hold (L2), nil when they hold none.
	Projection *frame.Anchor

	// Outside gives what is known about the log away from its files; nil is
	// nothing. It is called before the log's end is looked at, so that what comes
	// to be known meanwhile is no surprise. whole asks for everything; without it,
	// at a start, what can be had without reading the log is enough.
	Outside func(whole bool) (Outside, error)

	// Fence says why nothing may be appended just now, with ErrFenceUnconfirmed or
	// ErrFenceLost; nil where it may, and where there is no fence. It is asked under the
	// log's lock, at each append and again before each batch is written, so it must not wait.
	Fence func() error

	// SlowSync and StuckSync bound one sync: above the first the log refuses new
	// groups, above the second it is poisoned. 0 is 5 s and 20 s.
	SlowSync, StuckSync time.Duration

	Now    func() time.Time
	Rand   io.Reader
	Logger *slog.Logger
	// Step is called at each named step of the append, open and recovery paths.
	// Tests end the process, or freeze the disk, there.
	Step func(name string)
	// OneThread keeps every write and sync on one OS thread, so that a fault that
	// a test injects into the n-th call of a thread hits a known one.
	OneThread bool
	// OnCorruption is told, once, of a report that says corruption_detected and
	// was made while the log was open.
	OnCorruption func(frame.Report)
}

// withDefaults fills what is empty and resolves the path.
func (o Options) withDefaults() (Options, error) {
	o.Fsync = cmp.Or(o.Fsync, FsyncRequired)
	o.OnTornTail = cmp.Or(o.OnTornTail, TornTailRecord)
	o.VerifyOnStart = cmp.Or(o.VerifyOnStart, VerifyActive)
	o.SlowSync = cmp.Or(o.SlowSync, defaultSlowSync)
	o.StuckSync = cmp.Or(o.StuckSync, defaultStuckSync)
	if o.FS == nil {
		o.FS = frame.OS{}
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Rand == nil {
		o.Rand = rand.Reader
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Step == nil {
		o.Step = func(string) {}
	}
	return o, o.check()
}

func (o *Options) check() error {
	switch {
	case o.Path == "":
		return fmt.Errorf("%w: Path is empty", ErrInvalidOptions)
	case o.Fsync != FsyncRequired && o.Fsync != FsyncOff:
		return fmt.Errorf("%w: Fsync %.40q is neither required nor off", ErrInvalidOptions, o.Fsync)
	case o.OnTornTail != TornTailRecord && o.OnTornTail != TornTailRefuse:
		return fmt.Errorf("%w: OnTornTail %.40q is neither record nor refuse", ErrInvalidOptions, o.OnTornTail)
	case o.VerifyOnStart != VerifyActive && o.VerifyOnStart != VerifyFull:
		return fmt.Errorf("%w: VerifyOnStart %.40q is neither active nor full", ErrInvalidOptions, o.VerifyOnStart)
	case o.PreallocateBytes < 0:
		return fmt.Errorf("%w: PreallocateBytes %d is negative", ErrInvalidOptions, o.PreallocateBytes)
	case o.SegmentBytes < 0 || o.SegmentAge < 0:
		return fmt.Errorf("%w: SegmentBytes %d or SegmentAge %v is negative", ErrInvalidOptions, o.SegmentBytes, o.SegmentAge)
	}
	return nil
}

// tempPath is where a file is written before it is renamed to its name.
func tempPath(path string) string { return path + ".tmp" }

func parent(path string) string { return filepath.Dir(path) }
