package pgexec

import (
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"writegate/commands/fault"
	"writegate/fixtures/postgres"
)

// After a failover the old primary may come back as a primary: nothing is written there
// any more, nothing is read, and no verdict comes of it.
func TestAServerThatWasLeftBehindIsNotUsed(t *testing.T) {
	old := postgres.ClusterForTest(t, nil)
	require.NoError(t, old.CreateDatabase(t.Context(), "shop"))
	next := old.StandbyForTest(t)
	_, behind, _ := strings.Cut(old.URL("shop"), "@")
	before, after, _ := strings.Cut(next.URL("shop"), "@")
	host, _, _ := strings.Cut(behind, "/")
	both := before + "@" + host + "," + after // the old one first, as it was written down
	db, side := openURL(t, both)
	side.run("CREATE TABLE t (n int)")
	write := func(db *DB, n string) (Dispatch, Result, error) {
		tx, err := db.Begin(t.Context(), BeginOptions{ExecutionID: newExecution()})
		if err != nil {
			return Dispatch{}, Result{}, err
		}
		defer tx.Rollback()
		_, err = tx.Exec(t.Context(), Statement{SQL: "INSERT INTO t VALUES (" + n + ")"}, nil)
		require.NoError(t, err)
		res, err := tx.Commit(t.Context())
		return tx.Dispatch(), res, err
	}
	first, _, err := write(db, "1")
	require.NoError(t, err)
	require.Equal(t, "00000001", first.Upstream.Timeline)
	const caughtUp = "SELECT CASE WHEN to_regclass('t') IS NOT NULL THEN query_to_xml('SELECT count(*) AS n FROM t', false, false, '')::text LIKE '%<n>1</n>%' END"
	require.Eventually(t, func() bool { return postgres.QueryURL(t, next.URL("shop"), caughtUp) == "t" }, time.Minute, 10*time.Millisecond)
	open, err := db.Begin(t.Context(), BeginOptions{ExecutionID: newExecution()})
	require.NoError(t, err)
	_, err = open.Exec(t.Context(), Statement{SQL: "INSERT INTO t VALUES (2)"}, nil)
	require.NoError(t, err)

	alone, err := db.BeginAlone(t.Context(), BeginOptions{ExecutionID: newExecution()})
	require.NoError(t, err)
	spare, _ := openURL(t, both)
	require.NoError(t, spare.writer.conns.CreateResource(t.Context())) // for somebody who went away

	require.NoError(t, next.Promote(t.Context())) // and the old one does not know
	other, _ := openURL(t, next.URL("shop"))
	sent, _, err := write(other, "3")
	require.NoError(t, err)
	require.Equal(t, "00000002", sent.Upstream.Timeline)
	db.Knows(map[string]string{sent.Upstream.SystemIdentifier: sent.Upstream.Timeline}, "")

	res, err := open.Commit(t.Context())
	require.Equal(t, fault.DBQueryFailed, fault.CodeOf(err), "it may be sent again at once")
	require.Equal(t, staleReason, fault.Of(err).Details["reason"])
	require.Equal(t, []any{Failure, OutcomeAborted, BasisRollbackAcknowledged}, []any{res.State, res.Outcome, res.Basis})
	res, err = alone.Exec(t.Context(), Statement{SQL: "VACUUM t"}, nil)
	requireStale(t, err)
	require.Equal(t, []any{Failure, OutcomeAborted, BasisCommitNeverSent}, []any{res.State, res.Outcome, res.Basis})
	went, _, err := write(db, "4")
	require.NoError(t, err)
	require.Equal(t, "00000002", went.Upstream.Timeline, "the next host of the URL")
	spare.Knows(map[string]string{sent.Upstream.SystemIdentifier: sent.Upstream.Timeline}, "")
	unused, err := spare.Begin(t.Context(), BeginOptions{ExecutionID: newExecution()})
	require.NoError(t, err)
	require.Equal(t, "00000002", unused.Dispatch().Upstream.Timeline)
	unused.Rollback()
	require.Equal(t, "1", postgres.QueryURL(t, old.URL("shop"), "SELECT count(*) FROM t"))
	require.Equal(t, "3", postgres.QueryURL(t, next.URL("shop"), "SELECT count(*) FROM t"))

	require.NoError(t, next.Kill())
	db.writer.lost()
	_, _, err = write(db, "5")
	requireStale(t, err)
	_, err = db.BeginRead(t.Context(), &Statement{SQL: "SELECT 1"}, Limits{})
	requireStale(t, err)
	_, err = db.Check(t.Context(), Sent{XID: sent.XID, Upstream: sent.Upstream})
	requireStale(t, err)
	back, _ := openURL(t, both) // on purpose
	back.Knows(map[string]string{sent.Upstream.SystemIdentifier: sent.Upstream.Timeline}, "00000001")
	_, _, err = write(back, "6")
	require.NoError(t, err)
	require.Equal(t, Verdict{OutcomeNotKnowable, BasisOtherTimeline, "00000001"}, check(t, back, Sent{XID: sent.XID, Upstream: sent.Upstream}))
}

func requireStale(t *testing.T, err error) {
	t.Helper()
	f, ok := fault.As(err)
	require.True(t, ok, "%v", err)
	require.Equal(t, fault.DBUnavailable, f.Code)
	require.Equal(t, "stale_timeline", f.Details["reason"], "%v", f.Details)
}

// What is wrong is said of the host that is no standby: whoever reads of a standby
// promotes it.
func TestAStandbyIsNotTheCauseWhereThePrimaryRefuses(t *testing.T) {
	c := postgres.ClusterForTest(t, nil)
	standby := c.StandbyForTest(t)
	host := func(c *postgres.Cluster) string {
		u, err := url.Parse(c.URL("postgres"))
		require.NoError(t, err)
		return u.Host
	}
	first, err := url.Parse(standby.URL("postgres"))
	require.NoError(t, err)
	says := func(hosts string) string {
		u := *first
		u.Host = hosts
		db, err := Open(Config{URL: u.String(), TLS: TLSConfig{Mode: TLSDisable}, PoolMax: 1}, slog.New(slog.DiscardHandler))
		require.NoError(t, err)
		defer closeWithin(t, db)
		_, err = db.Begin(t.Context(), BeginOptions{})
		require.Error(t, err)
		return err.Error()
	}
	require.Contains(t, says(host(standby)), "a standby")
	require.NoError(t, os.WriteFile(filepath.Join(c.Dir, "data", "pg_hba.conf"), []byte("host all all 127.0.0.1/32 reject\n"), 0o600))
	postgres.ExecuteURL(t, c.URL("postgres"), "SELECT pg_reload_conf()")
	require.Eventually(t, func() bool { return strings.Contains(says(host(c)), "refused the gate's login") }, time.Minute, 10*time.Millisecond)
	require.Contains(t, says(host(c)+","+host(standby)), "refused the gate's login")
}

// A promotion of the readers' standby costs their connections, and stops nobody.
func TestAPromotionIsNoDrift(t *testing.T) {
	c := postgres.ClusterForTest(t, nil)
	standby := c.StandbyForTest(t)
	db, _ := openURL(t, c.URL("postgres"), func(cfg *Config) { cfg.ReadURL = standby.URL("postgres") })
	var held []*Reading
	for range 4 {
		r, err := db.BeginRead(t.Context(), &Statement{SQL: "SELECT 1"}, Limits{})
		require.NoError(t, err)
		held = append(held, r)
	}
	require.NoError(t, standby.Promote(t.Context()))
	for _, r := range held { // the answers tell of it
		_, err := r.Run(t.Context(), newExecution(), Statement{SQL: "SELECT 1"}, db.NewRows(0))
		require.NoError(t, err)
	}
	_, _, err := read(t, db, "SELECT 1")
	require.NoError(t, err)
	require.Zero(t, db.reader.quarantined.Load())
}

// A host that refuses the login does not keep the gate from the next one.
func TestTheNextHostIsTriedWhereOneRefusesTheLogin(t *testing.T) {
	old, next := postgres.ClusterForTest(t, nil), postgres.ClusterForTest(t, nil)
	for password, c := range map[string]*postgres.Cluster{"rotated": old, "known": next} {
		postgres.ExecuteURL(t, c.URL("postgres"), "CREATE ROLE g LOGIN PASSWORD '"+password+"'")
	}
	db, err := Open(Config{URL: fmt.Sprintf("postgres://g:known@127.0.0.1:%d,127.0.0.1:%d/postgres", old.Port, next.Port), TLS: TLSConfig{Mode: TLSDisable}}, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	t.Cleanup(db.Close)
	tx, err := db.Begin(t.Context(), BeginOptions{ExecutionID: newExecution()})
	require.NoError(t, err)
	require.Contains(t, tx.Dispatch().Upstream.Host, fmt.Sprint(next.Port))
	tx.Rollback()
	require.NoError(t, next.Kill())
	db.writer.lost()
	_, err = db.Begin(t.Context(), BeginOptions{ExecutionID: newExecution()})
	require.Equal(t, "28P01", fault.Of(err).Details["sqlstate"], "%v", err)
}
