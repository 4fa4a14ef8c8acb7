package sqlgate

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"
)

// Outcomes that nobody can settle stay unknown: however many there are, others get their
// turn.
func TestOutcomesThatStayUnknownKeepNoOtherWaiting(t *testing.T) {
	var later atomic.Int64
	w := newWireWorld(t, func(o *Options) {
		o.QueryTimeout = 100 * time.Millisecond
		o.Now = func() time.Time { return time.Now().Add(time.Duration(later.Load())) }
	})
	side, err := pgconn.Connect(t.Context(), w.url)
	require.NoError(t, err)
	defer side.Close(context.Background())
	_, err = side.Exec(t.Context(), "BEGIN; LOCK TABLE t").ReadAll()
	require.NoError(t, err)
	const many = 7
	for i := range many {
		_, err := w.Submit(t.Context(), &Request{RequestID: fmt.Sprint("req_", i), SQL: "VACUUM t", Claims: Claims{Actor: "a", App: "app", Tenant: "t", Role: "r", Host: "h", Env: "prod"}})
		require.Error(t, err)
	}
	view := w.store.View()
	require.Equal(t, many, view.UnknownCount())
	require.NoError(t, view.Close())
	_, err = side.Exec(t.Context(), "ROLLBACK").ReadAll()
	require.NoError(t, err)
	later.Store(int64(2 * time.Hour))
	c := checks{most: 4, asked: make(map[string]time.Time)}
	for range many {
		w.checkUnknown(t.Context(), &c)
	}
	require.Len(t, c.asked, many)
}
