package pgexec

import (
	"context"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"writegate/commands/fault"
)

const (
	int4, text, timestamptz = 23, 25, 1184
)

func describe(t testing.TB, db *DB, sql string, types ...uint32) Description {
	t.Helper()
	d, err := db.Describe(context.Background(), sql, types)
	require.NoError(t, err, sql)
	return d
}

func TestAStatementIsDescribedAndNotRun(t *testing.T) {
	db, side := open(t)
	side.run("CREATE TABLE t (a int, b varchar(7))")
	for _, c := range []struct {
		sql    string
		types  []uint32
		params []uint32
		fields []Field
	}{
		{"SELECT 1 AS one", nil, []uint32{}, []Field{{Label: "one", TypeOID: int4, Modifier: -1, Size: 4}}},
		{"SELECT $1 AS x", []uint32{timestamptz}, []uint32{timestamptz}, []Field{{Label: "x", TypeOID: timestamptz, Modifier: -1, Size: 8}}},
		{"SELECT $1 AS x, $2::int4 AS y", nil, []uint32{text, int4}, []Field{{Label: "x", TypeOID: text, Modifier: -1, Size: -1}, {Label: "y", TypeOID: int4, Modifier: -1, Size: 4}}},
		{"INSERT INTO t VALUES ($1, $2)", nil, []uint32{int4, 1043}, nil},
		{"SELECT", nil, []uint32{}, []Field{}},
		{"", nil, []uint32{}, nil},
	} {
		d := describe(t, db, c.sql, c.types...)
		require.Equal(t, c.params, d.Params, c.sql)
		require.Equal(t, c.fields, d.Fields, c.sql)
	}
	d := describe(t, db, "DELETE FROM t RETURNING b")
	require.Equal(t, "b", d.Fields[0].Label)
	require.EqualValues(t, 7+4, d.Fields[0].Modifier)
	require.EqualValues(t, 2, d.Fields[0].TableColumn)
	require.Equal(t, side.ask("SELECT 't'::regclass::oid::int"), strconv.FormatUint(uint64(d.Fields[0].TableOID), 10))
	require.Equal(t, "0", side.ask("SELECT count(*) FROM t"))
}

func TestAnErrorOfADescribeIsTheServers(t *testing.T) {
	db, _ := open(t, func(c *Config) { c.PoolMax = 1 })
	for sql, state := range map[string]string{
		"SELECT FROM nowhere": "42P01", "SELEC 1": "42601", "SELECT 1; SELECT 2": "42601", "SELECT $2::int": "42P18",
	} {
		_, err := db.Describe(context.Background(), sql, nil)
		require.Equal(t, fault.DBQueryFailed, fault.CodeOf(err), sql)
		require.Equal(t, state, fault.Of(err).Details["sqlstate"], sql)
		require.Equal(t, `[{"a":1}]`, mustRead(t, db, "SELECT 1 AS a"), "the connection goes on")
	}
	require.Zero(t, db.Stats().Quarantined)
}

// Parse evaluates constants, and with them the check of a domain.
func TestWhatParseRunsCannotWrite(t *testing.T) {
	db, side := open(t)
	side.run(`CREATE TABLE t (a int);
CREATE FUNCTION put(int) RETURNS bool LANGUAGE plpgsql AS $$ BEGIN INSERT INTO t VALUES ($1); RETURN true; END $$;
CREATE FUNCTION sly(int) RETURNS bool LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN RETURN put($1); END $$;
CREATE DOMAIN dom AS int CHECK (sly(VALUE))`)
	b := beginBlock(t, db, BlockOptions{})
	const parsed = "SELECT '{5}'::dom[]"
	_, err := db.Describe(context.Background(), parsed, nil)
	require.Equal(t, "25006", fault.Of(err).Details["sqlstate"])
	_, err = b.Block.Describe(context.Background(), BeginOptions{}, parsed, nil, nil)
	require.Equal(t, "25006", fault.Of(err).Details["sqlstate"])
	require.Equal(t, byte('E'), b.Status())
	b.Rollback()
	require.Equal(t, "0", side.ask("SELECT count(*) FROM t"))
}

func TestABlockDescribesWhatOnlyItSees(t *testing.T) {
	db, _ := open(t)
	b := beginBlock(t, db, BlockOptions{})
	b.write("CREATE TABLE t (a int)")
	d, err := b.Block.Describe(context.Background(), BeginOptions{}, "INSERT INTO t VALUES ($1)", nil, nil)
	require.NoError(t, err)
	require.Equal(t, Description{Params: []uint32{int4}}, d)
	b.write("INSERT INTO t VALUES (1)")
	_, err = db.Describe(context.Background(), "SELECT a FROM t", nil)
	require.Equal(t, "42P01", fault.Of(err).Details["sqlstate"])
	b.commit()
	require.Equal(t, "a", describe(t, db, "SELECT a FROM t").Fields[0].Label)
}

func TestALossOfADescribe(t *testing.T) {
	for _, kind := range []lossKind{lostBefore, lostAfter} {
		t.Run(kind.String(), func(t *testing.T) {
			db, _ := lossy(t, "SELECT 4711", kind, 1)
			_, err := db.Describe(context.Background(), "SELECT 4711", nil)
			require.Equal(t, fault.DBConnectionFailed, fault.CodeOf(err))
			describe(t, db, "SELECT 4711")
		})
	}
}

func TestASettingIsShownAsTheServerTakesIt(t *testing.T) {
	db, _ := open(t)
	for _, c := range []struct{ name, value, shown string }{
		{"TimeZone", "europe/berlin", "Europe/Berlin"}, {"TimeZone", "-7", "<-07>+07"}, {"lock_timeout", "250", "250ms"}, {"lock_timeout", "2000", "2s"},
	} {
		shown, err := db.Setting(context.Background(), c.name, c.value)
		require.NoError(t, err)
		require.Equal(t, c.shown, shown)
	}
	for _, value := range []string{"Mars/Olympus", "", "a\x00b"} {
		_, err := db.Setting(context.Background(), "TimeZone", value)
		require.Equal(t, fault.DBQueryFailed, fault.CodeOf(err), value)
	}
	for _, value := range []string{"1.23456", "14.999", "-0.01"} { // the server takes them, and not what it shows for them
		_, err := db.Setting(context.Background(), "TimeZone", value)
		require.Equal(t, "22023", fault.Of(err).Details["sqlstate"], value)
	}
	_, err := db.Setting(context.Background(), "search_path", "pg_temp")
	require.Equal(t, fault.Internal, fault.CodeOf(err))
	require.Equal(t, `[{"z":"UTC"}]`, mustRead(t, db, "SELECT current_setting('TimeZone') AS z"))
}

// What a session may set holds for one statement of each kind and is gone behind it.
func TestSettingsHoldForOneStatement(t *testing.T) {
	db, _ := open(t, func(c *Config) { c.PoolMax = 1 })
	const show = "SELECT current_setting('TimeZone') || ' ' || current_setting('lock_timeout') AS s"
	own := Settings{"TimeZone": "Asia/Tokyo", "lock_timeout": "250"}
	const set, pinned = `[{"s":"Asia/Tokyo 250ms"}]`, `[{"s":"UTC 3s"}]`
	run := func(settings Settings) (shown []string) {
		rows := db.NewRows(0)
		_, err := db.Read(context.Background(), "", Statement{SQL: show, Settings: settings}, Limits{}, rows)
		require.NoError(t, err)
		shown = append(shown, string(rows.JSON()))

		tx, err := db.Begin(context.Background(), BeginOptions{Settings: settings})
		require.NoError(t, err)
		require.Equal(t, settings["TimeZone"], tx.Dispatch().Settings["TimeZone"])
		rows = db.NewRows(0)
		_, err = tx.Exec(context.Background(), sql(show), rows)
		require.NoError(t, err)
		tx.Rollback()
		shown = append(shown, string(rows.JSON()))

		alone, err := db.BeginAlone(context.Background(), BeginOptions{Settings: settings})
		require.NoError(t, err)
		rows = db.NewRows(0)
		_, err = alone.Exec(context.Background(), sql(show), rows)
		require.NoError(t, err)
		return append(shown, string(rows.JSON()))
	}
	require.Equal(t, []string{set, set, set}, run(own))
	require.Equal(t, []string{pinned, pinned, pinned}, run(nil))

	b := beginBlock(t, db, BlockOptions{})
	for range 2 {
		_, rows, err := b.tryRead(show, BeginOptions{Settings: own})
		require.NoError(t, err)
		require.Equal(t, set, rows)
		_, rows, err = b.tryWrite(show, BeginOptions{Settings: own}, false)
		require.NoError(t, err)
		require.Equal(t, set, rows)
		_, rows, err = b.tryWrite(show, BeginOptions{}, false)
		require.NoError(t, err)
		require.Equal(t, pinned, rows)
		require.Equal(t, pinned, b.read(show))
	}
	quoted := "'; SELECT 1" // the server takes it for a zone of its own
	_, rows, err := b.tryWrite("SELECT current_setting('TimeZone') ~ 'SELECT' AS q", BeginOptions{Settings: Settings{"TimeZone": quoted}}, false)
	require.NoError(t, err)
	require.Equal(t, `[{"q":true}]`, rows)
	b.commit()
	require.Zero(t, db.Stats().Quarantined)
}
