package pgexec

import (
	"context"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"
)

// While one looks at a database that hangs, whoever asks too waits no longer than it
// has time, and not for all who came before.
func TestWhoAsksForTheHealthWaitsItsOwnTimeAlone(t *testing.T) {
	db, err := Open(Config{URL: "postgres://u:p@127.0.0.1:1/d", TLS: TLSConfig{Mode: TLSDisable}}, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	defer db.Close()
	db.health.turn <- struct{}{} // somebody looks
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	s := db.Status(ctx)
	require.False(t, s.OK)
	require.Equal(t, "u", s.Role)
	<-db.health.turn
	require.False(t, db.Status(t.Context()).OK, "and the next one looks itself")
}
