package pgexec

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// The fence of a log keeps two gates that were started on copies of one log from both
// writing (design/cluster.md part 7). In a table of a database beside the guarded one
// stands, for each log, the epoch that a copy of it took last. Whoever is to write holds
// a session with an advisory lock there, and raises the epoch from the one that its own
// copy knows. When to do that, and what to do where it fails, is the business of
// commands/fence; here is what the database is asked.

// SettingFence names the fence's database in errors.
const SettingFence = "GATE_LOG_FENCE_URL"

// How the server finds out that a holder is gone which it can't hear: it asks after
// fenceIdle of silence, and gives up fenceGone after the last sign of life. A holder stops
// writing by itself long before (commands/fence.Limit), so the lock is never free
// while one that is cut off still writes. tcp_user_timeout is for the case that an answer
// is under way, in which no keepalive is sent; Linux takes it for the bound of the
// keepalives too. Over a Unix socket they are ignored, and the kernel tells at once.
const (
	fenceIdle     = 10 * time.Second
	fenceInterval = 5 * time.Second
	fenceGone     = 20 * time.Second
)

// fenceStatement bounds a statement at the server, a wait for a row's lock included.
const fenceStatement = 2 * time.Second

// A LogFence says where the fence's table is.
type LogFence struct {
	URL            string // GATE_LOG_FENCE_URL
	Table          string // GATE_LOG_FENCE_TABLE, schema.table
	TLS            TLSConfig
	ConnectTimeout time.Duration // the longest that connect_timeout in the URL may say
	Holder         string        // host and process, shown to people as the session's application_name
}

// TLSBeside is the TLS of another database than the guarded one, whose own t is: it is as
// strict, or stricter where the URL says so, and its authority may be another. The name in the certificate is that of its host.
func (t TLSConfig) TLSBeside(raw string) TLSConfig {
	t.ServerName = ""
	u, err := url.Parse(raw)
	if err != nil {
		return t // parseURL says so
	}
	if u.Query().Get(keySSLMode) == TLSVerifyFull {
		t.Mode = TLSVerifyFull
	}
	if root := u.Query().Get(keySSLRootCert); root != "" {
		t.CAPath = root
	}
	return t
}

// login reads the URL and the TLS files, anew each time: they may have been replaced.
func (f *LogFence) login() (*pgconn.Config, error) {
	tls, err := f.TLS.withURLs([][2]string{{SettingFence, f.URL}})
	if err != nil {
		return nil, err
	}
	set, err := tls.load(time.Now())
	if err != nil {
		return nil, fmt.Errorf("%s: %w", SettingFence, err)
	}
	cfg, err := parseURL(SettingFence, f.URL, set, cmp.Or(f.ConnectTimeout, 5*time.Second))
	if err != nil {
		return nil, err
	}
	ms := func(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }
	s := func(d time.Duration) string { return strconv.Itoa(int(d.Seconds())) }
	cfg.RuntimeParams = map[string]string{
		"application_name": printable("gate/fence " + f.Holder),
		"search_path":      "pg_catalog, pg_temp", "TimeZone": "UTC", "client_encoding": "UTF8", "standard_conforming_strings": "on",
		"default_transaction_read_only": "off", "default_transaction_isolation": "read committed",
		"row_security":       "off", // rows that a policy hides are an error, not none
		"synchronous_commit": "on",  // an epoch that was taken must not be lost with the server's last moments
		"statement_timeout":  ms(fenceStatement), "lock_timeout": ms(fenceStatement), "idle_session_timeout": "0",
		"tcp_keepalives_idle": s(fenceIdle), "tcp_keepalives_interval": s(fenceInterval), "tcp_keepalives_count": strconv.Itoa(int((fenceGone - fenceIdle) / fenceInterval)), "tcp_user_timeout": ms(fenceGone),
	}
	cfg.ConnectTimeout = cmp.Or(cfg.ConnectTimeout, f.ConnectTimeout, 5*time.Second)
	cfg.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsReadWrite // of each host in turn: a standby's locks are its own
	return cfg, nil
}

// printable is what application_name shows of a text: ASCII, and 63 bytes at most.
func printable(text string) string {
	text = strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, text)
	return text[:min(len(text), 63)]
}

// Check says what is wrong with the settings, without a connection.
func (f *LogFence) Check() error {
	_, err := f.login()
	return err
}

// SameDatabase reports whether two URLs, as the driver reads them, lead to a database of
// one name at one host and port. That they do not is no proof that the databases differ.
func SameDatabase(a, b string) bool {
	x, errX := driverConfig(a)
	y, errY := driverConfig(b)
	if a == "" || b == "" || errX != nil || errY != nil || cmp.Or(x.Database, x.User) != cmp.Or(y.Database, y.User) {
		return false
	}
	return slices.ContainsFunc(hostsOf(x), func(h string) bool { return slices.Contains(hostsOf(y), h) })
}

func hostsOf(cfg *pgconn.Config) []string {
	hosts := []string{cfg.Host + ":" + strconv.Itoa(int(cfg.Port))}
	for _, f := range cfg.Fallbacks {
		hosts = append(hosts, f.Host+":"+strconv.Itoa(int(f.Port)))
	}
	return hosts
}

// LogFenceDDL are the statements that make the table, for a superuser to run, with a role
// that may do what a gate has to and no more.
func LogFenceDDL(name, role string) string {
	schema, _, _ := strings.Cut(name, ".")
	return fmt.Sprintf(`-- Once, as a superuser, in the database of %[4]s.
CREATE ROLE %[3]s LOGIN; -- then give it a password: \password %[3]s
CREATE SCHEMA IF NOT EXISTS "%[1]s";
CREATE TABLE %[2]s (
  log_id text PRIMARY KEY,
  epoch bigint NOT NULL CHECK (epoch > 0),
  nonce text NOT NULL,
  holder text NOT NULL,
  taken_at timestamptz NOT NULL,
  confirmed_at timestamptz NOT NULL,
  released boolean NOT NULL,
  head_seq bigint NOT NULL,
  head_hash text NOT NULL,
  followed_by text NOT NULL
);
GRANT USAGE ON SCHEMA "%[1]s" TO %[3]s;
GRANT SELECT, INSERT, UPDATE ON %[2]s TO %[3]s; -- never DELETE or TRUNCATE
`, schema, quotedMarker(name), quoteName(role), SettingFence)
}

// A FenceMark is an epoch together with the nonce of whoever took it. The zero mark is none.
type FenceMark struct {
	Epoch uint64
	Nonce [16]byte
}

// A FenceRow is what the table has of a log.
type FenceRow struct {
	FenceMark
	Holder      string
	TakenAt     time.Time
	ConfirmedAt time.Time
	Released    bool     // the holder ended, and writes nothing more
	HeadSeq     uint64   // how far the holder's log was; 0 = not known
	HeadHash    [32]byte // of that event
	FollowedBy  [16]byte // the log that follows this one, which is not written any more; zero = none
}

// A FenceSession is one connection to the fence's database. It is used by one goroutine
// at a time.
type FenceSession struct {
	pg       *pgconn.PgConn
	table    string
	System   string // of pg_control_system(): the cluster
	Database string
}

// Open logs in and looks whether the table may be used. Its errors hold no password.
func (f *LogFence) Open(ctx context.Context) (*FenceSession, error) {
	login, err := f.login()
	if err != nil {
		return nil, err
	}
	pg, err := dial(ctx, login)
	if err != nil {
		return nil, fmt.Errorf("%s: no connection to the fence's database: %w%s", SettingFence, err, loginAdvice(err))
	}
	s := &FenceSession{pg: pg, table: f.Table}
	var is struct {
		PID              uint32
		System, Database string
	}
	err = s.ask(ctx, &is, "SELECT json_build_object('pid', pg_backend_pid(), 'system', (SELECT c.system_identifier::text FROM pg_control_system() AS c), 'database', current_database())")
	if err == nil && is.PID != pg.PID() {
		err = errors.New("a connection pooler stands between the gate and the fence's database; the fence is held by a session, so it needs a direct connection")
	}
	if err != nil {
		s.Close()
		return nil, fmt.Errorf("%s: %w", SettingFence, err)
	}
	s.System, s.Database = is.System, is.Database
	return s, nil
}

// Close ends the session, and with it its locks.
func (s *FenceSession) Close() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = s.pg.Close(ctx) // the socket is gone either way
}

// ask reads the one JSON value that a query answers with. A query without a row leaves
// what it reads into as it was.
func (s *FenceSession) ask(ctx context.Context, into any, sql string, params ...string) error {
	_, err := askOne(ctx, s.pg, into, sql, params...)
	return err
}

// FenceKey is the key of a log's advisory lock: the first eight bytes of the SHA-256 of
// "gate.log_fence.v1", a zero byte and the log_id, as a big-endian number.
func FenceKey(logID [16]byte) int64 {
	sum := sha256.Sum256(append([]byte("gate.log_fence.v1\x00"), logID[:]...))
	return int64(binary.BigEndian.Uint64(sum[:]))
}

// lockOf is the condition that finds a log's lock in pg_locks.
func lockOf(logID [16]byte) string {
	key := uint64(FenceKey(logID))
	return fmt.Sprintf("l.locktype = 'advisory' AND l.granted AND l.objsubid = 1 AND l.classid = %d AND l.objid = %d AND l.database = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database())",
		uint32(key>>32), uint32(key))
}

// Lock takes a log's lock at once or not at all. by says who has it then: the
// application_name, address and age of that session.
func (s *FenceSession) Lock(ctx context.Context, logID [16]byte) (got bool, by string, err error) {
	err = s.ask(ctx, &got, "SELECT to_json(pg_try_advisory_lock("+strconv.FormatInt(FenceKey(logID), 10)+"))")
	if err != nil || got {
		return got, "", err
	}
	var holder struct{ Name, From, Since string }
	err = s.ask(ctx, &holder, "SELECT json_build_object('name', a.application_name, 'from', CASE WHEN a.backend_start IS NOT NULL THEN coalesce(host(a.client_addr), 'its server''s host') END, 'since', to_char(a.backend_start, 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"')) FROM pg_locks AS l JOIN pg_stat_activity AS a ON a.pid = l.pid WHERE "+lockOf(logID)+" LIMIT 1")
	if holder.Name == "" {
		return false, "a session that has ended meanwhile", err
	}
	return false, fmt.Sprintf("%s, connected from %s since %s", strings.TrimPrefix(holder.Name, "gate/fence "), cmp.Or(holder.From, "an address that this role is not shown"), cmp.Or(holder.Since, "a moment that it is not shown either")), err
}

// Row reads what the table has of a log; found is false where it has nothing.
func (s *FenceSession) Row(ctx context.Context, logID [16]byte) (row FenceRow, found bool, err error) {
	var r struct {
		Epoch                         uint64
		Nonce, Holder, Hash, Followed string
		Taken, Confirmed              time.Time
		Released                      bool
		Head                          uint64
	}
	err = s.ask(ctx, &r, "SELECT json_build_object('epoch', f.epoch, 'nonce', f.nonce, 'holder', f.holder, 'hash', f.head_hash, 'followed', f.followed_by, 'taken', f.taken_at, 'confirmed', f.confirmed_at, 'released', f.released, 'head', f.head_seq) FROM "+
		quotedMarker(s.table)+" AS f WHERE f.log_id = $1", hex.EncodeToString(logID[:]))
	if err != nil || r.Epoch == 0 {
		return row, false, s.fault(err)
	}
	row = FenceRow{FenceMark: FenceMark{Epoch: r.Epoch}, Holder: r.Holder, TakenAt: r.Taken, ConfirmedAt: r.Confirmed, Released: r.Released, HeadSeq: r.Head}
	for _, f := range []struct {
		into []byte
		text string
	}{{row.Nonce[:], r.Nonce}, {row.HeadHash[:], r.Hash}, {row.FollowedBy[:], r.Followed}} {
		b, err := hex.DecodeString(f.text)
		if err != nil || len(b) != len(f.into) && len(b) > 0 {
			return row, false, fmt.Errorf("the table %s (GATE_LOG_FENCE_TABLE) holds what no gate wrote there", s.table)
		}
		copy(f.into, b)
	}
	return row, true, nil
}

// Take puts to into the table in the place of a row with the mark from, or where there is
// none of the log and from is zero. It gives false where the table has something else, or
// the session has not the log's lock.
func (s *FenceSession) Take(ctx context.Context, logID [16]byte, from FenceMark, to *FenceRow) (took bool, err error) {
	hash, followed := "", ""
	if to.HeadHash != [32]byte{} {
		hash = hex.EncodeToString(to.HeadHash[:])
	}
	if to.FollowedBy != [16]byte{} {
		followed = hex.EncodeToString(to.FollowedBy[:])
	}
	params := []string{hex.EncodeToString(logID[:]), strconv.FormatUint(to.Epoch, 10), hex.EncodeToString(to.Nonce[:]), to.Holder, strconv.FormatBool(to.Released), strconv.FormatUint(to.HeadSeq, 10), hash, followed}
	held := "EXISTS (SELECT FROM pg_locks AS l WHERE l.pid = pg_backend_pid() AND " + lockOf(logID) + ")"
	sql := "INSERT INTO " + quotedMarker(s.table) + " AS f (log_id, epoch, nonce, holder, taken_at, confirmed_at, released, head_seq, head_hash, followed_by)" +
		" SELECT $1, $2::bigint, $3, $4, now(), now(), $5::boolean, $6::bigint, $7, $8 WHERE " + held + " ON CONFLICT (log_id) DO NOTHING RETURNING to_json(true)"
	if from != (FenceMark{}) {
		sql = "UPDATE " + quotedMarker(s.table) + " AS f SET epoch = $2::bigint, nonce = $3, holder = $4, taken_at = now(), confirmed_at = now(), released = $5::boolean, head_seq = $6::bigint, head_hash = $7, followed_by = $8" +
			" WHERE f.log_id = $1 AND f.epoch = $9::bigint AND f.nonce = $10 AND " + held + " RETURNING to_json(true)"
		params = append(params, strconv.FormatUint(from.Epoch, 10), hex.EncodeToString(from.Nonce[:]))
	}
	err = s.ask(ctx, &took, sql, params...)
	return took, s.fault(err)
}

// Confirm says in the table how far the log of the holder with a mark has come, where the
// session has the log's lock and the table has what the holder left there: before is the
// hashes of which one has to be there. It is a write, so that a server that is no
// primary any more, or has lost the standbys that it waits for, confirms nothing.
func (s *FenceSession) Confirm(ctx context.Context, logID [16]byte, mark FenceMark, before [2][32]byte, seq uint64, hash [32]byte, released bool) (confirmed bool, err error) {
	err = s.ask(ctx, &confirmed, "UPDATE "+quotedMarker(s.table)+" AS f SET confirmed_at = now(), head_seq = $4::bigint, head_hash = $5, released = $6::boolean"+
		" WHERE f.log_id = $1 AND f.epoch = $2::bigint AND f.nonce = $3 AND f.head_hash IN ($7, $8) AND EXISTS (SELECT FROM pg_locks AS l WHERE l.pid = pg_backend_pid() AND "+lockOf(logID)+") RETURNING to_json(true)",
		hex.EncodeToString(logID[:]), strconv.FormatUint(mark.Epoch, 10), hex.EncodeToString(mark.Nonce[:]), strconv.FormatUint(seq, 10), hex.EncodeToString(hash[:]), strconv.FormatBool(released),
		hex.EncodeToString(before[0][:]), hex.EncodeToString(before[1][:]))
	return confirmed, s.fault(err)
}

// fault says what to do about an error of the table's.
func (s *FenceSession) fault(err error) error {
	var e *pgconn.PgError
	if !errors.As(err, &e) {
		return err
	}
	return fmt.Errorf("the table %s (GATE_LOG_FENCE_TABLE) can't be used: %w. `gate log fence ddl` prints the statements that make it, with its grants", s.table, err)
}
