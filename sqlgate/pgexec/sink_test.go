package pgexec

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"writegate/commands/fault"
)

// unwilling is a sink that takes so many rows; without any not even the columns.
type unwilling struct{ rows int }

var errUnwilling = errors.New("the client is gone")

func (u *unwilling) Fields([]Field) error {
	if u.rows == 0 {
		return errUnwilling
	}
	return nil
}

func (u *unwilling) Row([][]byte) error {
	if u.rows--; u.rows < 0 {
		return errUnwilling
	}
	return nil
}

// A client that goes away in the middle of a result says nothing about the
// database: its connections stay.
func TestASinkThatTakesNoMoreEndsItsOwnConnectionAlone(t *testing.T) {
	db, side := open(t)
	side.run("CREATE TABLE t (a int)")
	many := sql("SELECT g FROM generate_series(1, 5000) g")
	for _, rows := range []int{0, 1, 100} {
		b := beginBlock(t, db, BlockOptions{})
		b.write("INSERT INTO t VALUES (1)")
		res, err := b.Block.Read(context.Background(), BeginOptions{}, many, &unwilling{rows})
		require.Equal(t, fault.ResultTooLarge, fault.CodeOf(err))
		require.Equal(t, ReasonResultTooLarge, res.ReasonCode)
		require.True(t, b.Lost())
		_, err = db.Read(context.Background(), "", many, Limits{}, &unwilling{rows})
		require.Equal(t, fault.ResultTooLarge, fault.CodeOf(err))
	}
	require.Equal(t, "0", side.ask("SELECT count(*) FROM t"))
	mustRead(t, db, "SELECT 1 AS a")
	known := func() time.Time { db.reader.mu.Lock(); defer db.reader.mu.Unlock(); return db.reader.roleAt }
	before := known()
	require.NotZero(t, before)
	_, err := db.Read(context.Background(), "", many, Limits{}, &unwilling{0})
	require.Error(t, err)
	require.Equal(t, before, known(), "what is known of the server is kept")
}
