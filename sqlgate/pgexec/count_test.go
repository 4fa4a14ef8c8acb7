package pgexec

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"writegate/commands/fault"
)

// limitedWrite runs a write that may change ten rows, as a transaction of its own
// or in a block.
func limitedWrite(t *testing.T, db *DB, text string, userCode, inBlock bool) (Result, error) {
	t.Helper()
	most := int64(10)
	o := BeginOptions{Limits: Limits{MaxRows: &most}, UserCode: userCode}
	if !inBlock {
		tx, err := db.Begin(context.Background(), o)
		if err != nil {
			return Result{}, err
		}
		defer tx.Rollback()
		if res, err := tx.Exec(context.Background(), sql(text), db.NewRows(0)); err != nil {
			return res, err
		}
		return tx.Commit(context.Background())
	}
	b, err := db.BeginBlock(context.Background(), BlockOptions{})
	require.NoError(t, err)
	defer b.Rollback()
	if _, err := b.DispatchWrite(context.Background(), o); err != nil {
		return Result{}, err
	}
	if res, err := b.Write(context.Background(), sql(text), false, db.NewRows(0)); err != nil {
		return res, err
	}
	return b.Commit(context.Background())
}

// However a statement tries, it changes no more rows than its limit.
func TestARowLimitIsNotLiftedFromInside(t *testing.T) {
	url, role := plainRole(t)
	super, side := open(t)
	side.run(`CREATE TABLE t (a int); INSERT INTO t SELECT g FROM generate_series(1, 100) g; CREATE TABLE u (LIKE t);
CREATE FUNCTION many() RETURNS int LANGUAGE plpgsql AS $$ BEGIN INSERT INTO t SELECT g FROM generate_series(1, 50000) g; RETURN 1; END $$;
CREATE FUNCTION uncounted() RETURNS int LANGUAGE plpgsql SET track_counts = off AS $$ BEGIN INSERT INTO t SELECT g FROM generate_series(1, 50000) g; RETURN 1; END $$;
CREATE FUNCTION late() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM many(); RETURN NULL; END $$;
CREATE CONSTRAINT TRIGGER c AFTER INSERT ON u DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION late();
GRANT ALL ON t, u TO ` + role)
	side.run(`ALTER TABLE t OWNER TO ` + role + "; GRANT ALL ON SCHEMA public TO " + role)
	db, _ := openURL(t, url(side.url))
	const insert = "INSERT INTO t SELECT g FROM generate_series(1, 50000) g"
	for _, c := range []struct {
		text     string
		userCode bool
	}{
		{insert, false},
		{"WITH w AS (" + insert + " RETURNING a) SELECT set_config('track_counts', 'off', true) FROM w LIMIT 1", false},
		{"INSERT INTO t SELECT length(set_config('track_counts', 'off', true)) FROM generate_series(1, 50000)", false},
		{"DO $$ BEGIN SET LOCAL track_counts = off; " + insert + "; END $$", true},
		{"DO $$ BEGIN SET LOCAL track_counts = off; " + insert + "; SET LOCAL track_counts = on; END $$", true},
		{"DO $$ BEGIN PERFORM set_config('track_' || 'counts', 'off', true); " + insert + "; PERFORM set_config('track_' || 'counts', 'on', true); END $$", true},
		{"SELECT uncounted()", true},
		{"SELECT many()", true},
		{"DO $$ BEGIN TRUNCATE t; END $$", true},
		{"DO $$ BEGIN DELETE FROM t; TRUNCATE t; END $$", true},
		{"DO $$ BEGIN " + insert + "; DROP TABLE t; END $$", true},
		{"INSERT INTO u VALUES (1)", false},
	} {
		for _, inBlock := range []bool{false, true} {
			for who, db := range map[string]*DB{"superuser": super, "role": db} {
				res, err := limitedWrite(t, db, c.text, c.userCode, inBlock)
				require.NotEqual(t, Success, res.State)
				switch f := fault.Of(err); f.Code {
				case fault.RowLimitExceeded:
				case fault.DBUnavailable:
					require.Equal(t, ReasonSettingsDrift, res.ReasonCode, "%s, %s", who, c.text)
				default:
					require.Equal(t, "42501", f.Details["sqlstate"], "%s, %s: %v", who, c.text, err)
				}
				db.writer.mu.Lock()
				db.writer.drifts = nil // or the pool stops
				db.writer.mu.Unlock()
				require.Equal(t, "100", side.ask("SELECT count(*) FROM t"), "%s, %s", who, c.text)
			}
		}
	}
}

// What the transaction holds already hides a TRUNCATE by a trigger, which no text names.
func TestATruncateBehindALockDoesNotPassARowLimit(t *testing.T) {
	db, side := open(t)
	side.run(`CREATE TABLE items (id int); INSERT INTO items SELECT generate_series(1, 20); CREATE TABLE victim (id int);
CREATE FUNCTION empties() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN TRUNCATE victim; RETURN NULL; END $$`)
	most := int64(5)
	limited := BeginOptions{Limits: Limits{MaxRows: &most}}
	for _, trigger := range []string{
		"CREATE TRIGGER e AFTER DELETE ON items FOR EACH STATEMENT EXECUTE FUNCTION empties()",
		"CREATE CONSTRAINT TRIGGER e AFTER DELETE ON items DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION empties()",
	} {
		side.run("INSERT INTO victim SELECT generate_series(1, 1000); " + trigger)
		for _, order := range [][]string{{"LOCK TABLE victim", ""}, {"ALTER TABLE victim ALTER id TYPE bigint", ""}, {"", "LOCK TABLE victim"}} {
			b := beginBlock(t, db, BlockOptions{})
			var err error
			run := func(o BeginOptions, text string) {
				if err != nil || text == "" {
					return
				}
				if _, err = b.DispatchWrite(context.Background(), o); err == nil {
					_, err = b.Block.Write(context.Background(), sql(text), false, db.NewRows(0))
				}
			}
			run(BeginOptions{}, order[0])
			run(limited, "DELETE FROM items WHERE id = 2")
			run(BeginOptions{}, order[1])
			if err == nil {
				_, err = b.Commit(context.Background())
			}
			b.Rollback()
			require.Equal(t, fault.RowLimitExceeded, fault.CodeOf(err), "%s; %s: %v", trigger, order, err)
			require.Equal(t, "1000", side.ask("SELECT count(*) FROM victim"))
		}
		side.run("DROP TRIGGER e ON items; TRUNCATE victim")
	}
}

// A REPEATABLE READ transaction writes tables that its snapshot does not have, and the
// counters are listed by those that it has.
func TestATableYoungerThanTheSnapshotDoesNotPassARowLimit(t *testing.T) {
	db, side := open(t)
	side.run(`CREATE TABLE items (id int); INSERT INTO items SELECT generate_series(1, 20); CREATE TABLE spare (id int); CREATE TABLE parts (id int) PARTITION BY RANGE (id);
CREATE FUNCTION fills() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO parts SELECT generate_series(1, 1000); RETURN NULL; END $$`)
	most := int64(5)
	limited := BeginOptions{Limits: Limits{MaxRows: &most}}
	const fill = "INSERT INTO parts SELECT generate_series(1, 1000)"
	for _, c := range []struct{ trigger, first, write string }{
		{"", "", "WITH w AS (" + fill + " RETURNING 1) DELETE FROM items WHERE id = 1"},
		{"", fill, "DELETE FROM items WHERE id = 1"}, // whether it changes more of the table can't be told
		{"CREATE TRIGGER f AFTER DELETE ON items FOR EACH STATEMENT EXECUTE FUNCTION fills()", "", "DELETE FROM items WHERE id = 1"},
		{"CREATE CONSTRAINT TRIGGER f AFTER DELETE ON items DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION fills()", "", "DELETE FROM items WHERE id = 1"},
	} {
		for _, isolation := range []string{"repeatable read", "serializable"} {
			if c.trigger != "" {
				side.run(c.trigger)
			}
			b := beginBlock(t, db, BlockOptions{Isolation: isolation})
			write := func(o BeginOptions, text string) error {
				if text == "" {
					return nil
				}
				if _, err := b.DispatchWrite(context.Background(), o); err != nil {
					return err
				}
				_, err := b.Block.Write(context.Background(), sql(text), false, db.NewRows(0))
				return err
			}
			require.NoError(t, write(BeginOptions{}, "INSERT INTO items VALUES (99)"), "the snapshot is taken")
			side.run("CREATE TABLE young PARTITION OF parts FOR VALUES FROM (0) TO (2000)")
			require.NoError(t, write(BeginOptions{}, c.first))
			err := write(limited, c.write)
			if err == nil {
				_, err = b.Commit(context.Background())
			}
			b.Rollback()
			require.Equal(t, fault.RowLimitExceeded, fault.CodeOf(err), "%s: %+v: %v", isolation, c, err)
			require.Equal(t, notCountable, fault.Of(err).Details["reason"], "%s: %+v", isolation, c)
			require.Equal(t, "20 0", side.ask("SELECT (SELECT count(*) FROM items) || ' ' || (SELECT count(*) FROM parts)"))
			side.run("DROP TABLE young")
			if c.trigger != "" {
				side.run("DROP TRIGGER f ON items")
			}
		}
	}

	b := beginBlock(t, db, BlockOptions{Isolation: "repeatable read"})
	defer b.Rollback()
	for i, text := range []string{"INSERT INTO spare VALUES (99)", "DELETE FROM items WHERE id = 1"} {
		_, err := b.DispatchWrite(context.Background(), limited)
		require.NoError(t, err)
		_, err = b.Block.Write(context.Background(), sql(text), i == 1, db.NewRows(0))
		require.NoError(t, err)
		side.run("CREATE TABLE other" + strconv.Itoa(i) + " (id int)")
		if i == 0 {
			side.run("CREATE INDEX ON items (id)")
		}
	}
	_, err := b.Commit(context.Background())
	require.NoError(t, err, "a younger table that the transaction does not write is nothing to it, nor is an index")
}

// What a connection counted earlier goes with a table that another session drops.
func TestATableThatOthersDropDoesNotPassARowLimit(t *testing.T) {
	db, side := open(t)
	side.run("CREATE TABLE victim (id int); INSERT INTO victim SELECT generate_series(1, 900); CREATE TABLE scratch (id int)")
	most := int64(5)
	b := beginBlock(t, db, BlockOptions{})
	defer b.Rollback()
	write := func(o BeginOptions, text string, meanwhile string) error {
		_, err := b.DispatchWrite(context.Background(), o)
		require.NoError(t, err)
		if meanwhile != "" {
			side.run(meanwhile)
		}
		_, err = b.Block.Write(context.Background(), sql(text), false, db.NewRows(0))
		return err
	}
	s, err := b.Block.Savepoint(context.Background())
	require.NoError(t, err)
	require.NoError(t, write(BeginOptions{}, "INSERT INTO scratch SELECT generate_series(1, 2000)", ""))
	require.NoError(t, b.Block.RollbackTo(context.Background(), s)) // its lock is gone, its counters are not
	err = write(BeginOptions{Limits: Limits{MaxRows: &most}}, "WITH u AS (UPDATE victim SET id = id RETURNING 1) SELECT count(*) FROM u", "DROP TABLE scratch")
	require.Equal(t, fault.RowLimitExceeded, fault.CodeOf(err), "%v", err)
	require.Equal(t, int64(900), fault.Of(err).Details["rows"])
}

// A TRUNCATE puts the counters of its table back.
func TestATruncateOfATemporaryTableDoesNotPassARowLimit(t *testing.T) {
	url, role := plainRole(t)
	_, side := open(t)
	side.run(`CREATE TABLE items (id int); INSERT INTO items SELECT generate_series(1, 20); CREATE TABLE victim (id int); INSERT INTO victim SELECT generate_series(1, 900);
CREATE FUNCTION works() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN TRUNCATE work; UPDATE victim SET id = id; RETURN NULL; END $$;
GRANT ALL ON items, victim TO ` + role)
	db, _ := openURL(t, url(side.url))
	most := int64(5)
	for _, c := range []struct{ trigger, write string }{
		{"", "DO $$ BEGIN TRUNCATE work; UPDATE victim SET id = id; END $$"},
		{"CREATE TRIGGER w AFTER DELETE ON items FOR EACH STATEMENT EXECUTE FUNCTION works()", "DELETE FROM items WHERE id = 1"},
		{"CREATE CONSTRAINT TRIGGER w AFTER DELETE ON items DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION works()", "DELETE FROM items WHERE id = 1"},
	} {
		if c.trigger != "" {
			side.run(c.trigger)
		}
		b := beginBlock(t, db, BlockOptions{})
		var err error
		for i, text := range []string{"CREATE TEMPORARY TABLE work (id int)", "INSERT INTO work SELECT generate_series(1, 3000)", c.write} {
			o := BeginOptions{UserCode: true}
			if i == 2 {
				o.Limits.MaxRows = &most
			}
			_, err = b.DispatchWrite(context.Background(), o)
			require.NoError(t, err)
			_, err = b.Block.Write(context.Background(), sql(text), false, db.NewRows(0))
		}
		if err == nil {
			_, err = b.Commit(context.Background())
		}
		b.Rollback()
		require.Equal(t, fault.RowLimitExceeded, fault.CodeOf(err), "%+v: %v", c, err)
		require.GreaterOrEqual(t, fault.Of(err).Details["rows"], int64(900), "%+v", c)
		if c.trigger != "" {
			side.run("DROP TRIGGER w ON items")
		}
	}
}

// What a deferred trigger changes counts for the write that has a limit, whichever is last.
func TestAnotherWriteDoesNotTakeOverWhatADeferredTriggerChanges(t *testing.T) {
	db, side := open(t)
	side.run(`CREATE TABLE items (id int); INSERT INTO items SELECT generate_series(1, 20); CREATE TABLE victim (id int); INSERT INTO victim SELECT generate_series(1, 1000);
CREATE FUNCTION changes() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN UPDATE victim SET id = id; RETURN NULL; END $$;
CREATE CONSTRAINT TRIGGER c AFTER DELETE ON items DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION changes()`)
	few, many := int64(5), int64(2000)
	for _, second := range []Limits{{}, {MaxRows: &many}} {
		b := beginBlock(t, db, BlockOptions{})
		for i, text := range []string{"DELETE FROM items WHERE id = 1", "INSERT INTO items VALUES (99)"} {
			_, err := b.DispatchWrite(context.Background(), BeginOptions{Limits: []Limits{{MaxRows: &few}, second}[i]})
			require.NoError(t, err)
			_, err = b.Block.Write(context.Background(), sql(text), i == 1, db.NewRows(0))
			require.NoError(t, err)
		}
		_, err := b.Commit(context.Background())
		b.Rollback()
		require.Equal(t, fault.RowLimitExceeded, fault.CodeOf(err), "%v", err)
		require.Equal(t, "20", side.ask("SELECT count(*) FROM items"))
	}
}

// What is counted by the rules is not refused: triggers, cascades, functions and
// temporary tables of a role that may not switch the count off.
func TestARowLimitRefusesNothingThatIsCounted(t *testing.T) {
	url, role := plainRole(t)
	super, side := open(t)
	side.run(`CREATE TABLE p (id int PRIMARY KEY); CREATE TABLE c (p int REFERENCES p ON DELETE CASCADE); CREATE TABLE log (a int);
CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO log VALUES (1); RETURN NULL; END $$;
CREATE TRIGGER n AFTER INSERT OR DELETE ON p FOR EACH ROW EXECUTE FUNCTION note();
CREATE CONSTRAINT TRIGGER l AFTER INSERT ON c DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION note();
CREATE FUNCTION work() RETURNS int LANGUAGE plpgsql AS $$ BEGIN CREATE TEMPORARY TABLE IF NOT EXISTS w (a int) ON COMMIT DROP; INSERT INTO w VALUES (1); INSERT INTO p VALUES (3); RETURN 1; END $$;
GRANT ALL ON p, c, log TO ` + role)
	db, _ := openURL(t, url(side.url))
	for _, inBlock := range []bool{false, true} {
		side.run("TRUNCATE p, c, log")
		for who, db := range map[string]*DB{"superuser": super, "role": db} {
			for _, text := range []string{"INSERT INTO p VALUES (1), (2)", "INSERT INTO c VALUES (1), (1), (2)", "DELETE FROM p WHERE id < 3"} {
				res, err := limitedWrite(t, db, text, false, inBlock)
				require.NoError(t, err, "%s, %s", who, text)
				require.Equal(t, Success, res.State)
			}
		}
		for _, text := range []string{"SELECT work()", "DELETE FROM p"} {
			_, err := limitedWrite(t, db, text, true, inBlock)
			require.NoError(t, err, text)
		}
		_, err := limitedWrite(t, super, "SELECT work()", true, inBlock)
		require.Equal(t, notCountable, fault.Of(err).Details["reason"], "a superuser may switch the count off")
	}
}

// plainRole makes a role without rights, and a function that puts it into a URL.
func plainRole(t *testing.T) (login func(url string) string, role string) {
	t.Helper()
	role = "plain_" + strconv.FormatInt(time.Now().UnixNano(), 36)
	_, side := open(t)
	side.run("CREATE ROLE " + role + " LOGIN PASSWORD 'plain'")
	t.Cleanup(func() { side.run("DROP ROLE " + role) }) // behind the databases of the test
	return func(url string) string { return withUser(t, url, role, "plain") }, role
}

// The query of a cursor WITH HOLD runs in COMMIT, behind what is counted.
func TestACursorThatIsHeldDoesNotPassARowLimit(t *testing.T) {
	db, side := open(t)
	side.run(`CREATE TABLE t (a int); CREATE FUNCTION bump(n int) RETURNS int LANGUAGE plpgsql AS 'BEGIN INSERT INTO t VALUES (n); RETURN n; END';
		CREATE TABLE fired (a int); CREATE FUNCTION held() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN EXECUTE 'DECLARE c CURSOR WITH HOLD FOR SELECT bump(g) FROM generate_series(1, 100) g'; RETURN NULL; END $$;
		CREATE CONSTRAINT TRIGGER held AFTER INSERT ON fired DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION held()`)
	most := int64(3)
	for _, text := range []string{
		"DO $$ BEGIN EXECUTE 'DECLARE c CURSOR WITH HOLD FOR SELECT bump(g) FROM generate_series(1, 100) g'; END $$",
		"INSERT INTO fired VALUES (1)",
	} {
		_, _, err := write(t, db, text, Limits{MaxRows: &most})
		require.NoError(t, err, text)
		require.Equal(t, "0", side.ask("SELECT count(*) FROM t"), text)
	}
}
