package classify

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"writegate/fixtures/postgres"
)

// A watcher runs statements on a server of its own, as superuser and in a
// transaction that may write, and tells what they did besides answering.
type watcher struct {
	t       testing.TB
	major   int
	conn    *pgconn.PgConn // runs the statements
	victim  *pgconn.PgConn // another session, which listens and must live
	victims map[string]bool
	inotify int
	last    map[string]string // the last print outside a transaction
	heard   []string
}

// The canary is a file that only a statement would open; paths lie below the
// server's data folder, where relative names of its file functions start.
const (
	canaryDir  = "canary"
	canaryFile = "canary/secret.txt"
)

// watchSchema is what the statements find: something to count, to lock, to
// draw from and to read.
const watchSchema = `
CREATE TABLE watch_t (id int PRIMARY KEY, v text);
INSERT INTO watch_t SELECT n, 'v' || n FROM generate_series(1, 3) n;
CREATE SEQUENCE watch_seq;
CREATE VIEW watch_view AS SELECT id FROM watch_t;
CREATE TYPE watch_mood AS ENUM ('sad', 'ok');
SELECT lo_create(4242), lo_put(4242, 0, '\x01');
GRANT ALL ON watch_t, watch_seq TO PUBLIC;
ANALYZE watch_t`

func newWatcher(t testing.TB) *watcher {
	t.Helper()
	cluster := postgres.ClusterForTest(t, map[string]string{
		"autovacuum": "off", "max_prepared_transactions": "2", "wal_level": "logical", "jit": "off",
	})
	w := &watcher{t: t, major: cluster.Major}
	w.watchFiles(filepath.Join(cluster.Dir, "data"))
	w.victim = w.connect(cluster.URL("postgres"))
	w.exec(w.victim, "LISTEN watch")
	w.conn = w.connect(cluster.URL("postgres"))
	w.exec(w.conn, watchSchema)
	w.settle()
	return w
}

func (w *watcher) connect(url string) *pgconn.PgConn {
	cfg, err := pgconn.ParseConfig(url)
	require.NoError(w.t, err)
	cfg.RuntimeParams["statement_timeout"] = "5000"
	cfg.OnNotification = func(_ *pgconn.PgConn, n *pgconn.Notification) { w.heard = append(w.heard, n.Channel) }
	return connect(w.t, cfg)
}

func (w *watcher) exec(conn *pgconn.PgConn, sql string) {
	w.t.Helper()
	_, err := conn.Exec(context.Background(), sql).ReadAll()
	require.NoError(w.t, err, sql)
}

// watchFiles looks out for files that are opened or made below the data folder.
func (w *watcher) watchFiles(data string) {
	require.NoError(w.t, os.Mkdir(filepath.Join(data, canaryDir), 0o755))
	require.NoError(w.t, os.WriteFile(filepath.Join(data, canaryFile), []byte("{\"a\": 1}\n"), 0o644))
	fd, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	require.NoError(w.t, err)
	w.inotify = fd
	w.t.Cleanup(func() { _ = unix.Close(fd) })
	const opened, made = unix.IN_OPEN | unix.IN_ACCESS, unix.IN_CREATE | unix.IN_DELETE | unix.IN_MOVED_TO
	for path, events := range map[string]uint32{
		canaryDir: opened | made, canaryFile: opened, "postgresql.conf": opened, "pg_hba.conf": opened, "pg_ident.conf": opened,
		"PG_VERSION": opened, ".": made, "pg_snapshots": made, "pg_replslot": made, "pg_twophase": made, "pg_tblspc": made,
	} {
		_, err := unix.InotifyAddWatch(fd, filepath.Join(data, path), events)
		require.NoError(w.t, err, path)
	}
}

// touched names the watched files that were opened or made since the last call;
// the file itself is "".
func (w *watcher) touched() (names []string) {
	var b [64 << 10]byte
	n, err := unix.Read(w.inotify, b[:])
	if errors.Is(err, unix.EAGAIN) {
		return nil
	}
	require.NoError(w.t, err)
	for at := 0; at < n; {
		length := int(binary.NativeEndian.Uint32(b[at+unix.SizeofInotifyEvent-4:]))
		end := at + unix.SizeofInotifyEvent + length
		names = append(names, strings.TrimRight(string(b[end-length:end]), "\x00"))
		at = end
	}
	return names
}

// printSQL is the state of a session and of the server around it. Reading takes
// AccessShareLock and nothing else, so any other lock is news.
const printSQL = `SELECT
 pg_current_xact_id_if_assigned()::text AS own_xid,
 pg_snapshot_xmax(pg_current_snapshot())::text AS next_xid,
 (SELECT md5(string_agg(concat(name, '=', setting), ',' ORDER BY name)) FROM pg_settings) AS settings,
 current_setting('watch.x', true) AS placeholder,
 concat(current_user, ' ', session_user, ' ', pg_my_temp_schema()) AS identity,
 (SELECT string_agg(DISTINCT concat(locktype, ' ', mode), ',') FROM pg_locks
   WHERE pid = pg_backend_pid() AND mode <> 'AccessShareLock' AND locktype <> 'virtualxid') AS locks,
 (SELECT string_agg(c, ',') FROM pg_listening_channels() c) AS channels,
 (SELECT count(*) FROM pg_prepared_statements WHERE name <> '') AS prepared,
 (SELECT count(*) FROM pg_cursors WHERE name <> '') AS cursors,
 (SELECT concat(last_value, is_called) FROM watch_seq) AS sequence,
 (SELECT count(*) FROM pg_class) AS relations,
 (SELECT count(*) FROM pg_largeobject_metadata) AS large_objects,
 (SELECT md5(string_agg(concat(id, v, xmin, xmax), ',' ORDER BY id)) FROM watch_t) AS rows,
 (SELECT count(*) FROM pg_replication_slots) AS slots,
 (SELECT count(*) FROM pg_replication_origin) AS origins,
 (SELECT count(*) FROM pg_prepared_xacts) AS two_phase,
 concat(pg_conf_load_time(), pg_postmaster_start_time(), pg_is_in_recovery()) AS server,
 (SELECT string_agg(d.stats_reset::text, ',' ORDER BY d.datid) FROM pg_stat_database d) AS database_statistics,
 (SELECT concat(b.stats_reset, a.stats_reset, s.stats_reset) FROM pg_stat_bgwriter b, pg_stat_archiver a, pg_stat_wal s) AS statistics`

// print takes the state; inside a transaction or outside it looks the same as
// long as nothing was done.
func (w *watcher) print() (map[string]string, error) {
	results, err := w.conn.Exec(context.Background(), printSQL).ReadAll()
	if err != nil {
		return nil, err
	}
	state := map[string]string{}
	for i, f := range results[0].FieldDescriptions {
		state[f.Name] = string(results[0].Rows[0][i])
	}
	return state, nil
}

// settle takes the state as it is for the one to compare with.
func (w *watcher) settle() {
	w.t.Helper()
	var err error
	w.last, err = w.print()
	require.NoError(w.t, err)
	w.exec(w.victim, "SELECT 1")
	w.heard = nil
	w.touched()
}

// run runs statements in one transaction, which is committed, and tells what
// they did besides answering and how many of them the server took. Where there
// are several, one that is refused is undone alone.
func (w *watcher) run(statements ...string) (effects []string, ran int) {
	w.t.Helper()
	w.exec(w.conn, "BEGIN READ WRITE")
	undo := "ROLLBACK TO s"
	if len(statements) == 1 { // a few functions refuse a subtransaction
		undo = "ROLLBACK"
	}
	for _, sql := range statements {
		if undo != "ROLLBACK" {
			w.exec(w.conn, "SAVEPOINT s")
		}
		if w.statement(sql) == nil {
			ran++
		} else if err := w.finish(undo); err != nil {
			effects = append(effects, fmt.Sprintf("%s: %v", sql, err))
		}
	}
	effects = w.compare(effects, "inside ")
	if err := w.finish("COMMIT"); err != nil {
		effects = append(effects, fmt.Sprintf("COMMIT: %v", err))
	}
	effects = w.compare(effects, "")
	if err := w.victim.Ping(context.Background()); err != nil {
		effects = append(effects, "another session ended")
	}
	if len(w.heard) > 0 {
		effects = append(effects, "notification")
	}
	if names := w.touched(); len(names) > 0 {
		effects = append(effects, "file", strings.Join(names, " "))
	}
	return effects, ran
}

// runAgain is run, except that files must be touched each time to count: anybody
// who walks through the folders opens them too, some of the times.
func (w *watcher) runAgain(statements ...string) (effects []string, ran int) {
	for range 5 {
		if effects, ran = w.run(statements...); len(effects) != 2 || effects[0] != "file" {
			break
		}
	}
	return effects, ran
}

func (w *watcher) finish(sql string) error {
	_, err := w.conn.Exec(context.Background(), sql).ReadAll()
	return err
}

// statement sends one statement by the extended protocol, with NULL for every
// parameter.
func (w *watcher) statement(sql string) error {
	ctx := context.Background()
	if !strings.Contains(sql, "$") {
		return w.conn.ExecParams(ctx, sql, nil, nil, nil, nil).Read().Err
	}
	described, err := w.conn.Prepare(ctx, "", sql, nil)
	if err != nil {
		return err
	}
	return w.conn.ExecPrepared(ctx, "", make([][]byte, len(described.ParamOIDs)), nil, nil).Read().Err
}

// compare appends what differs from the last state. Outside a transaction the
// new state becomes the last.
func (w *watcher) compare(effects []string, where string) []string {
	state, err := w.print()
	if err != nil {
		return append(effects, fmt.Sprintf("%sno answer: %v", where, err))
	}
	for _, name := range slices.Sorted(maps.Keys(state)) {
		if state[name] != w.last[name] {
			effects = append(effects, where+name)
		}
	}
	if where == "" {
		w.last = state
	}
	return effects
}

// What the watcher must see, so that seeing nothing means something.
var watchedEffects = [][2]string{
	{"INSERT INTO watch_t VALUES (9, 'x')", "rows"},
	{"SELECT id FROM watch_t FOR SHARE", "inside locks"},
	{"WITH x AS (SELECT id FROM watch_t FOR KEY SHARE) SELECT * FROM x", "inside own_xid"},
	{"SELECT nextval('watch_seq')", "sequence"},
	{"SELECT txid_current()", "inside own_xid"},
	{"SELECT set_config('work_mem', '1MB', false)", "settings"},
	{"SELECT set_config('work_mem', '2MB', true)", "inside settings"},
	{"SELECT set_config('watch.x', 'y', false)", "placeholder"},
	{"SET ROLE pg_monitor", "identity"},
	{"SELECT pg_advisory_lock(7)", "locks"},
	{"SELECT pg_try_advisory_xact_lock_shared(7)", "inside locks"},
	{"LOCK TABLE watch_t IN SHARE MODE", "inside locks"},
	{"LISTEN other", "channels"},
	{"NOTIFY watch", "notification"},
	{"SELECT pg_notify('watch', 'x')", "notification"},
	{"PREPARE p AS SELECT 1", "prepared"},
	{"DECLARE c CURSOR WITH HOLD FOR SELECT 1", "cursors"},
	{"SELECT 1 AS a INTO watch_new", "relations"},
	{"EXPLAIN ANALYZE CREATE TABLE watch_new2 AS TABLE watch_t", "relations"},
	{"CREATE TEMP TABLE watch_temp (a int)", "relations"},
	{"SELECT lo_create(0)", "large_objects"},
	{"SELECT lo_unlink(4242)", "large_objects"},
	{"SELECT pg_read_file('" + canaryFile + "')", "file"},
	{"SELECT pg_ls_dir('" + canaryDir + "')", "file"},
	{"SELECT x.pg_read_file FROM unnest(ARRAY['" + canaryFile + "']) x", "file"},
	{"SELECT pg_export_snapshot()", "file"},
	{"SELECT pg_create_physical_replication_slot('w')", "slots"},
	{"SELECT pg_replication_origin_create('w')", "origins"},
	{"SELECT pg_stat_reset()", "database_statistics"},
	{"SELECT query_to_xml('SELECT nextval(''watch_seq'')', true, true, '')", "sequence"},
	{"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()", "another session ended"},
}

func TestTheWatcherSeesWhatStatementsDo(t *testing.T) {
	w := newWatcher(t)
	for i := range 3 {
		effects, ran := w.runAgain("SELECT count(*) FROM watch_t, pg_class", "SELECT 1 / 0", "TABLE watch_t")
		require.Equal(t, 2, ran)
		require.Empty(t, effects, "reading is no effect, run %d", i)
	}
	tb := newTestTables(t, Config{ServerMajor: w.major})
	for _, row := range watchedEffects {
		sql, want := row[0], row[1]
		c, f := classifyText(tb, sql)
		require.False(t, f == nil && c.SafeRead, sql)
		effects, ran := w.run(sql)
		require.Equal(t, 1, ran, sql)
		require.Contains(t, effects, want, sql)
		w.exec(w.conn, "DISCARD ALL")
		if want != "another session ended" { // which is the last
			w.settle()
		}
	}
}
