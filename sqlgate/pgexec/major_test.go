package pgexec

import (
	"context"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"writegate/commands/fault"
)

// One text may be two statements on two majors: what was classified for another
// one is not sent, on any way to the database.
func TestAStatementClassifiedForAnotherMajorIsNotSent(t *testing.T) {
	db, side := open(t)
	side.run("CREATE TABLE t (a int)")
	ctx := context.Background()
	require.Zero(t, db.commonMajor(), "nothing is known before the first connection")
	mustWrite(t, db, "INSERT INTO t VALUES (1)")
	major := db.commonMajor()
	require.Equal(t, side.ask("SELECT current_setting('server_version_num')::int / 10000"), strconv.Itoa(major))
	for _, c := range []struct {
		name string
		send func(major int) error
	}{
		{"a read", func(major int) error {
			_, err := db.Read(ctx, "e", Statement{SQL: "SELECT a FROM t", Meaning: Meaning{Major: major}}, Limits{}, db.NewRows(0))
			return err
		}},
		{"a description", func(major int) error {
			r, err := db.BeginRead(ctx, &Statement{Meaning: Meaning{Major: major}}, Limits{})
			if err == nil {
				_, err = r.Describe(ctx, "SELECT a FROM t", nil, nil)
			}
			return err
		}},
		{"a write", func(major int) error {
			tx, err := db.Begin(ctx, BeginOptions{Meaning: Meaning{Major: major}})
			if err == nil {
				tx.Rollback()
			}
			return err
		}},
		{"a statement that runs alone", func(major int) error {
			a, err := db.BeginAlone(ctx, BeginOptions{Meaning: Meaning{Major: major}})
			if err == nil {
				a.Close()
			}
			return err
		}},
		{"a read in a block", func(major int) error {
			b := beginBlock(t, db, BlockOptions{})
			defer b.Rollback()
			_, err := b.DispatchRead(ctx, BeginOptions{Meaning: Meaning{Major: major}})
			return err
		}},
		{"a write in a block", func(major int) error {
			b := beginBlock(t, db, BlockOptions{})
			defer b.Rollback()
			_, err := b.DispatchWrite(ctx, BeginOptions{Meaning: Meaning{Major: major}})
			return err
		}},
	} {
		require.NoError(t, c.send(0), "%s that was classified for all", c.name)
		require.NoError(t, c.send(major), c.name)
		err := c.send(major + 1)
		require.Equal(t, fault.DBUnavailable, fault.CodeOf(err), c.name)
		require.Equal(t, "server_major", fault.Of(err).Details["reason"], c.name)
	}
	require.Equal(t, "1", side.ask("SELECT count(*) FROM t"))
	for _, write := range []bool{false, true} {
		_, omitted := db.BeginPlan(ctx, write, major+1)
		require.Contains(t, omitted, "another major")
	}
	require.Zero(t, db.Stats().InUse, "every connection was given back")
}

// Where reader and writer lead to servers of different majors there is no grammar
// that is right for both, so the classifier is told that none is known.
func TestPoolsOfDifferentMajorsHaveNoneInCommon(t *testing.T) {
	var told []int
	db, _ := open(t, func(c *Config) { c.OnServerMajor = func(major int) { told = append(told, major) } })
	mustWrite(t, db, "CREATE TABLE t (a int)")
	major := db.commonMajor()
	require.Equal(t, []int{major}, told)
	db.reader.major.Store(int32(major) + 1)
	db.reader.cfg.OnServerMajor(major + 1)
	require.Equal(t, []int{major, 0}, told)
}
