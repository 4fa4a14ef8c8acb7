package checkpoints

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"writegate/commands"
	"writegate/eventlog"
	"writegate/eventlog/checkpoint"
	"writegate/eventlog/event"
	"writegate/eventlog/frame"
	"writegate/fixtures/manualclock"
	"writegate/fixtures/witness/witnesstest"
	"writegate/projections"
)

const origin = "gate.example/test"

// A host is a folder with a log, a key, and the witnesses that it asks.
type host struct {
	t         testing.TB
	dir       string
	key       *checkpoint.PrivateKey
	signs     bool
	witnesses []*witnesstest.Witness
	clock     *manualclock.Clock
	set       func(*Options)
	segments  int64 // bytes of one; 0 = all in one
}

func newHost(t testing.TB) *host {
	key, err := checkpoint.NewPrivateKey()
	require.NoError(t, err)
	return &host{t: t, dir: t.TempDir(), key: key, signs: true, clock: manualclock.At(time.Unix(1735689600, 0)), set: func(*Options) {}}
}

func (h *host) vkey() string {
	vkey, err := h.key.Public().VKey(origin)
	require.NoError(h.t, err)
	return vkey
}

// witness starts one more witness that the host's gates ask.
func (h *host) witness() *witnesstest.Witness {
	w := witnesstest.Start(h.t, h.t.TempDir(), h.vkey())
	h.witnesses = append(h.witnesses, w)
	return w
}

// clients are new ones of its witnesses.
func (h *host) clients() (list []*checkpoint.Witness) {
	for _, w := range h.witnesses {
		c, err := checkpoint.NewWitness(w.URL, []string{w.VKey}, nil)
		require.NoError(h.t, err)
		list = append(list, c)
	}
	return list
}

// moved is the host with its files in another folder: those of ours that pass
// keep are copied there.
func (h *host) moved(keep func(path string) bool) *host {
	other := *h
	other.dir = h.t.TempDir()
	require.NoError(h.t, filepath.WalkDir(h.dir, func(path string, e os.DirEntry, err error) error {
		if err != nil || e.IsDir() || !keep(path) {
			return err
		}
		inside, err := filepath.Rel(h.dir, path)
		if err != nil {
			return err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if err := os.MkdirAll(filepath.Dir(filepath.Join(other.dir, inside)), 0o700); err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(other.dir, inside), content, 0o600)
	}))
	return &other
}

func all(string) bool { return true }

func (h *host) wal() string { return filepath.Join(h.dir, "audit.wal") }

func (h *host) folder() checkpoint.Folder {
	return checkpoint.NewFolder(h.wal() + frame.CheckpointsSuffix)
}

func (h *host) sizes() (sizes []uint64) {
	list, err := h.folder().List()
	require.NoError(h.t, err)
	for _, s := range list {
		sizes = append(sizes, s.Size)
	}
	return sizes
}

// A run is a gate's log from its opening to its end; the projections are always
// folded anew.
type run struct {
	*Keeper
	t      testing.TB
	h      *host
	anchor event.Anchor
	fits   bool // an anchor was found
	judged error
	end    func()
}

// open does what a start of the gate does before anything is appended.
func (h *host) open() *run {
	t := h.t
	t.Helper()
	o := Options{Folder: h.folder(), Now: h.clock.Now}
	if h.signs {
		o.Key = h.key
	}
	o.Witnesses = h.clients()
	h.set(&o)
	r := &run{Keeper: New(o), t: t, h: h}
	log, _, err := eventlog.Open(context.Background(), eventlog.Options{Path: h.wal(), Origin: origin, SigningKey: o.Key, Now: h.clock.Now, SegmentBytes: h.segments, Outside: r.Papers})
	require.NoError(t, err)
	store, err := projections.Open(projections.Options{Dir: "store", FS: vfs.NewMem()})
	require.NoError(t, err)
	connected := store.Connect(context.Background(), log)
	var signer *checkpoint.Signer
	if o.Key != nil && log.Serving() == nil {
		signer, err = checkpoint.NewSigner(log.Header().Origin, o.Key)
		require.NoError(t, err)
	}
	r.Attach(log, store, signer)
	ctx, cancel := context.WithCancel(context.Background())
	ran := make(chan struct{})
	go func() { defer close(ran); _ = store.Run(ctx, log) }()
	r.end = sync.OnceFunc(func() {
		cancel()
		<-ran
		require.NoError(t, log.Close(context.Background()))
		require.NoError(t, store.Close())
	})
	t.Cleanup(r.end)
	if connected == nil {
		r.anchor, r.fits, r.judged = r.Judge(context.Background())
	}
	return r
}

// start is open and the beginning of a run that serves.
func (h *host) start() *run {
	t := h.t
	t.Helper()
	r := h.open()
	require.NoError(t, r.log.Serving())
	c, err := commands.New(commands.Options{Log: r.log, Store: r.store, Now: h.clock.Now})
	require.NoError(t, err)
	e := event.Startup{Version: "0.6.0", Profile: "development", Fsync: "required", VerifyOnStart: "active", OnTornTail: "record"}
	if r.signer != nil {
		e.SigningVKey = r.signer.VKey()
	}
	require.NoError(t, c.Start(context.Background(), commands.Startup{Mode: "enforce", Event: e}))
	require.NoError(t, r.Begin(context.Background(), c))
	return r
}

// grow appends n events that mean nothing.
func (r *run) grow(n int) {
	r.t.Helper()
	for range n {
		require.NoError(r.t, r.commands.RecordHealthFail(context.Background(), "test", "m", ""))
	}
}

// sign makes a checkpoint of everything, as Run would, and offers it.
func (r *run) sign() *checkpoint.Note {
	r.t.Helper()
	n, err := r.checkpoint(context.Background())
	require.NoError(r.t, err)
	view := r.store.View()
	r.askLive(context.Background())
	r.offer(context.Background(), view, n)
	require.NoError(r.t, view.Close())
	return r.known()
}

// running has Run at work until halt, which comes before stop.
func (r *run) running() (halt func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); r.Run(ctx) }()
	return func() { cancel(); <-ended }
}

// stop is a clean end.
func (r *run) stop() {
	r.t.Helper()
	require.NoError(r.t, r.commands.Shutdown(context.Background(), "stopped", true))
	r.Last(context.Background())
	r.end()
}

// named are the checkpoints that events of the log name.
func (r *run) named() (list []event.CheckpointSigned) {
	r.t.Helper()
	for e, err := range r.log.From(context.Background(), 1) {
		require.NoError(r.t, err)
		if e.Type == event.TypeCheckpointSigned {
			var p event.CheckpointSigned
			require.NoError(r.t, e.Parse(&p))
			list = append(list, p)
		}
	}
	return list
}

// requireAccused: the log serves only readers, and a verification finds why.
func (r *run) requireAccused(kind frame.Kind) {
	r.t.Helper()
	require.ErrorIs(r.t, r.log.Serving(), eventlog.ErrCorrupt)
	report, err := r.log.Verify(context.Background())
	require.NoError(r.t, err)
	require.Equal(r.t, frame.Corruption, report.Status)
	var kinds []frame.Kind
	for _, f := range report.Faults {
		kinds = append(kinds, f.Kind)
	}
	require.Contains(r.t, kinds, kind, "%+v", report.Faults)
}
