package sqlgate

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"writegate/commands"
	"writegate/commands/fault"
	"writegate/eventlog"
	"writegate/eventlog/event"
	"writegate/projections"
	"writegate/sqlgate/classify"
	"writegate/sqlgate/pgexec"
	"writegate/sqlgate/policy"
	"writegate/sqlgate/policyfolder"
)

// A chainWorld is a gate without a server behind it, whose chain a test walks by
// itself.
type chainWorld struct {
	*Gate
	log *eventlog.Log
	dir string
}

func newChainWorld(t *testing.T) *chainWorld {
	t.Helper()
	ctx := t.Context()
	log, _, err := eventlog.Open(ctx, eventlog.Options{Path: filepath.Join(t.TempDir(), "audit.wal")})
	require.NoError(t, err)
	store, err := projections.Open(projections.Options{Dir: "store", FS: vfs.NewMem()})
	require.NoError(t, err)
	require.NoError(t, store.Connect(ctx, log))
	running, end := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan struct{})
	go func() { _ = store.Run(running, log); close(ended) }()
	cmds, err := commands.New(commands.Options{Log: log, Store: store})
	require.NoError(t, err)
	classifier, err := classify.New(classify.Config{SearchPath: "public", MaxSQLBytes: 1 << 18})
	require.NoError(t, err)
	database, err := pgexec.Open(pgexec.Config{URL: "postgres://nobody@127.0.0.1:1/none", SearchPath: "public", PoolMax: 1, TLS: pgexec.TLSConfig{Mode: "disable"}}, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	w := &chainWorld{log: log, dir: filepath.Join(t.TempDir(), "policies")}
	w.Gate, err = New(Options{Classifier: classifier, Database: database, Commands: cmds, Store: store, Mode: ModeEnforce, Events: log.From,
		Policies: PolicySource{Dir: w.dir, Manifest: policyfolder.DefaultManifest}, StatusOf: func(fault.Code) int { return 500 }})
	require.NoError(t, err)
	t.Cleanup(func() {
		database.Close()
		classifier.Close()
		require.NoError(t, log.Close(context.Background()))
		end()
		<-ended
		require.NoError(t, store.Close())
	})
	return w
}

// failures are the failed steps that the log has.
func (w *chainWorld) failures(t *testing.T) (steps []string) {
	t.Helper()
	for e, err := range w.log.From(t.Context(), 1) {
		require.NoError(t, err)
		var p event.HealthFail
		if e.Type == event.TypeHealthFail {
			require.NoError(t, e.Parse(&p))
			steps = append(steps, p.Step)
		}
	}
	return steps
}

func (w *chainWorld) create(t *testing.T, document []byte) {
	t.Helper()
	require.NoError(t, policyfolder.Create(w.dir, policyfolder.DefaultManifest, document))
}

func TestAFailureThatStaysIsRecordedOnce(t *testing.T) {
	w := newChainWorld(t)
	w.RunChain(t.Context(), nil)
	for range 5 {
		w.RetryChain(t.Context())
	}
	require.Equal(t, []string{StepManifest}, w.failures(t), "there is no folder")
	w.create(t, policy.Sample())
	extra := filepath.Join(w.dir, "extra.txt")
	require.NoError(t, os.WriteFile(extra, nil, 0o600))
	for range 5 {
		w.RetryChain(t.Context())
	}
	require.Equal(t, []string{StepManifest, StepManifest}, w.failures(t), "another cause is another failure")
	require.NoError(t, os.Remove(extra))
	w.RetryChain(t.Context())
	require.False(t, w.chain.Failed())
	head := w.log.Head().Seq
	for range 5 {
		w.RetryChain(t.Context())
	}
	require.Equal(t, head, w.log.Head().Seq, "a chain that passed is not walked again")
}

// TestARetryNeverTakesWhatTheLogDoesNotCallActive: a folder of another policy,
// whole and valid, is no way to change what decides.
func TestARetryNeverTakesWhatTheLogDoesNotCallActive(t *testing.T) {
	w := newChainWorld(t)
	w.create(t, policy.Sample())
	w.RunChain(t.Context(), nil)
	require.False(t, w.chain.Failed(), "%+v", w.chain.Failure())
	version := w.PolicyVersion()

	other := []byte(strings.Replace(string(policy.Sample()), "version: 1.0.0", "version: 9.0.0", 1))
	require.NoError(t, os.RemoveAll(w.dir))
	w.create(t, other)
	for range 3 {
		w.RetryChain(t.Context()) // nothing failed, so nothing is looked at
	}
	require.Equal(t, version, w.PolicyVersion())

	again, err := New(w.Options) // the next start over the same log
	require.NoError(t, err)
	again.RunChain(t.Context(), nil)
	for range 3 {
		again.RetryChain(t.Context())
	}
	require.Equal(t, StepManifest, again.chain.Failure().Step)
	require.Empty(t, again.PolicyVersion())
	require.NoError(t, os.RemoveAll(w.dir))
	again.RetryChain(t.Context())
	require.Equal(t, version, again.PolicyVersion(), "the folder is written from the log")
	require.Equal(t, policy.Digest(policy.Sample()), policy.Digest(documentIn(t, w.dir, version)))
}

func documentIn(t *testing.T, dir, version string) []byte {
	t.Helper()
	document, err := policyfolder.Document(dir, version)
	require.NoError(t, err)
	return document
}

// TestAChainWithoutItsLogIsNotMendedByTheFolder: what ends at the log is judged
// at the next start alone.
func TestAChainWithoutItsLogIsNotMendedByTheFolder(t *testing.T) {
	w := newChainWorld(t)
	w.create(t, policy.Sample())
	w.RunChain(t.Context(), fault.New(fault.AuditCorruptionDetected, "damaged"))
	w.RetryChain(t.Context())
	require.Equal(t, StepAuditLog, w.chain.Failure().Step)
	require.Empty(t, w.PolicyVersion())
	require.Empty(t, w.failures(t))
}
