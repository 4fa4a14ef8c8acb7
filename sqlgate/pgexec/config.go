package pgexec

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// Config holds the settings of the database's side; the comment behind each
// names the environment variable it comes from. A zero value is replaced by the
// default of the settings page.
type Config struct {
	URL     string // GATE_DATABASE_URL: the role that writes
	ReadURL string // GATE_DATABASE_READ_URL: role for safe reads and look-ups; empty: URL
	DDLURL  string // GATE_DATABASE_DDL_URL: role for ddl, dcl and maintenance; empty: the writer's pool

	SearchPath string // GATE_SEARCH_PATH: schemas separated by commas (public)

	PoolMax int // GATE_DB_POOL_MAX: connections at most, reader and writer each (16)
	// PoolReserved is GATE_DB_POOL_RESERVED: connections of each pool that one client
	// alone does not get (ForClient); an eighth of the pool at most, 0 is none.
	PoolReserved int
	ConnLifetime time.Duration // GATE_DB_CONN_MAX_LIFETIME_SECONDS (30 min)
	ConnIdle     time.Duration // GATE_DB_CONN_IDLE_SECONDS (5 min)

	ConnectTimeout   time.Duration // GATE_DB_CONNECT_TIMEOUT_MS: dial and log in, each host (5 s)
	AcquireTimeout   time.Duration // GATE_DB_ACQUIRE_TIMEOUT_MS: wait for a free connection (2 s)
	QueryTimeout     time.Duration // GATE_DB_QUERY_TIMEOUT_MS: statement_timeout (5 s)
	BulkQueryTimeout time.Duration // GATE_DB_BULK_QUERY_TIMEOUT_MS: the same for profile bulk (5 min)
	LockTimeout      time.Duration // GATE_DB_LOCK_TIMEOUT_MS (3 s)
	IdleInTxTimeout  time.Duration // GATE_DB_IDLE_IN_TX_TIMEOUT_MS (10 s)
	CommitTimeout    time.Duration // GATE_DB_COMMIT_TIMEOUT_MS: wait for the answer to COMMIT (10 s)
	DeadlineSlack    time.Duration // how far the gate's own deadline stands behind statement_timeout (1 s)
	PlanTime         time.Duration // what the server may take for each answer of an estimate (500 ms)
	OrphanGrace      time.Duration // when a backend whose connection was lost is ended (10 s)

	ErrorDetail    bool  // GATE_DB_ERROR_DETAIL: hand on DETAIL and CONTEXT, which carry values of rows
	MaxResultRows  int   // GATE_MAX_RESULT_ROWS (10,000)
	MaxResultBytes int64 // GATE_MAX_RESULT_BYTES (16 MiB)

	// MarkerTable is GATE_OUTCOME_MARKER_TABLE, schema.table; empty: writes leave no
	// marker. MarkerKeep is how long its rows are kept (GATE_OUTCOME_MARKER_KEEP_DAYS, 30 days).
	MarkerTable string
	MarkerKeep  time.Duration

	TLS TLSConfig

	// MayCommit says, as a fault, why nothing may be applied just now; nil where it may,
	// and a nil function says that always. It is asked before each COMMIT and before what
	// runs outside a transaction, and must not wait.
	MayCommit func() error

	// DenyRoles stops a pool whose role may do what it must not (GATE_PROFILE
	// production). Else OnRole is the only thing that comes of it. RoleEvery is
	// how often roles are looked at again (10 min).
	DenyRoles bool
	RoleEvery time.Duration

	// OnServerMajor is called when a connection shows the server's major for the
	// first time, or another one; with 0 where the URLs lead to servers of different
	// majors. OnPoolStopped is called when a pool stops for 30 s because settings drifted
	// three times in a minute and no statement of a client's was the cause (event
	// db_unavailable, reason_code settings_drift). OnRole is called when a pool's role is
	// seen for the first time or with other rights than before. All must return quickly.
	OnServerMajor func(major int)
	OnPoolStopped func(pool, reason string)
	OnRole        func(RoleReport)
}

// withDefaults fills in what is not set.
func (c Config) withDefaults() Config {
	c.ReadURL = cmp.Or(c.ReadURL, c.URL)
	c.SearchPath = cmp.Or(c.SearchPath, "public")
	c.PoolMax = cmp.Or(c.PoolMax, 16)
	c.ConnLifetime = cmp.Or(c.ConnLifetime, 30*time.Minute)
	c.ConnIdle = cmp.Or(c.ConnIdle, 5*time.Minute)
	c.ConnectTimeout = cmp.Or(c.ConnectTimeout, 5*time.Second)
	c.AcquireTimeout = cmp.Or(c.AcquireTimeout, 2*time.Second)
	c.QueryTimeout = cmp.Or(c.QueryTimeout, 5*time.Second)
	c.BulkQueryTimeout = cmp.Or(c.BulkQueryTimeout, 5*time.Minute)
	c.LockTimeout = cmp.Or(c.LockTimeout, 3*time.Second)
	c.IdleInTxTimeout = cmp.Or(c.IdleInTxTimeout, 10*time.Second)
	c.CommitTimeout = cmp.Or(c.CommitTimeout, 10*time.Second)
	c.DeadlineSlack = cmp.Or(c.DeadlineSlack, time.Second)
	c.PlanTime = cmp.Or(c.PlanTime, 500*time.Millisecond)
	c.OrphanGrace = cmp.Or(c.OrphanGrace, 10*time.Second)
	c.MaxResultRows = cmp.Or(c.MaxResultRows, 10_000)
	c.MaxResultBytes = cmp.Or(c.MaxResultBytes, 16<<20)
	c.MarkerKeep = cmp.Or(c.MarkerKeep, 30*24*time.Hour)
	c.RoleEvery = cmp.Or(c.RoleEvery, roleEvery)
	c.TLS.Mode = cmp.Or(c.TLS.Mode, TLSVerifyFull)
	return c
}

// check lists every fault of the values, all at once.
func (c Config) check() error {
	var errs []error
	for _, d := range []struct {
		name  string
		value time.Duration
	}{
		{"GATE_DB_CONN_MAX_LIFETIME_SECONDS", c.ConnLifetime}, {"GATE_DB_CONN_IDLE_SECONDS", c.ConnIdle},
		{"GATE_DB_CONNECT_TIMEOUT_MS", c.ConnectTimeout}, {"GATE_DB_ACQUIRE_TIMEOUT_MS", c.AcquireTimeout},
		{"GATE_DB_QUERY_TIMEOUT_MS", c.QueryTimeout}, {"GATE_DB_BULK_QUERY_TIMEOUT_MS", c.BulkQueryTimeout},
		{"GATE_DB_LOCK_TIMEOUT_MS", c.LockTimeout}, {"GATE_DB_IDLE_IN_TX_TIMEOUT_MS", c.IdleInTxTimeout},
		{"GATE_DB_COMMIT_TIMEOUT_MS", c.CommitTimeout},
	} {
		// Zero milliseconds mean "no limit" to PostgreSQL, and its limit is an int4.
		if d.value < time.Millisecond || d.value > 24*time.Hour {
			errs = append(errs, fmt.Errorf("%s must be from 1 ms to 24 h", d.name))
		}
	}
	if c.PoolMax < 1 || c.PoolMax > 1000 {
		errs = append(errs, errors.New("GATE_DB_POOL_MAX must be from 1 to 1000"))
	}
	if c.PoolReserved < 0 || c.PoolReserved > 1000 {
		errs = append(errs, errors.New("GATE_DB_POOL_RESERVED must be from 0 to 1000"))
	}
	if c.MaxResultRows < 1 || c.MaxResultRows > math.MaxInt32-1 {
		errs = append(errs, errors.New("GATE_MAX_RESULT_ROWS must be from 1 to 2147483646"))
	}
	if c.MaxResultBytes < 1<<10 || c.MaxResultBytes > 1<<30 {
		errs = append(errs, errors.New("GATE_MAX_RESULT_BYTES must be from 1 KiB to 1 GiB"))
	}
	if problem := MarkerTableFault(c.MarkerTable); c.MarkerTable != "" && problem != "" {
		errs = append(errs, errors.New("GATE_OUTCOME_MARKER_TABLE "+problem))
	}
	if _, err := quoteSearchPath(c.SearchPath); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// quoteSearchPath makes the pin of search_path: each schema quoted, pg_temp
// last, so that a temporary table never stands before a real one. pg_catalog is
// searched first by itself; named, it would be the target of CREATE TABLE.
func quoteSearchPath(list string) (string, error) {
	var quoted []string
	for name := range strings.SplitSeq(list, ",") {
		name = strings.TrimSpace(name)
		switch {
		case name == "", len(name) > 63, strings.ContainsRune(name, 0):
			return "", errors.New("GATE_SEARCH_PATH must be schema names of 1 to 63 bytes, separated by commas")
		case strings.HasPrefix(name, "pg_"):
			return "", errors.New("GATE_SEARCH_PATH must not name a schema of the system (pg_...)")
		}
		quoted = append(quoted, `"`+strings.ReplaceAll(name, `"`, `""`)+`"`)
	}
	return strings.Join(append(quoted, "pg_temp"), ", "), nil
}

// schemas are the names of the search path.
func (c Config) schemas() []string {
	names := strings.Split(c.SearchPath, ",")
	for i, name := range names {
		names[i] = strings.TrimSpace(name)
	}
	return names
}

// urlKeys are what a URL may say to the driver. A run-time parameter in a URL would undo
// a pin.
var urlKeys = []string{"host", "port", "user", "password", "dbname", "database"}

// ownKeys are libpq's words in a URL that the gate reads itself. They mean what they mean
// to libpq, and are refused where that would be weaker than the gate's own setting.
const (
	keySSLMode     = "sslmode"
	keySSLRootCert = "sslrootcert"
	keyTimeout     = "connect_timeout"
)

var ownKeys = []string{keySSLMode, keySSLRootCert, keyTimeout}

// keyAdvice says of other keys that libpq knows what is to be done instead.
var keyAdvice = map[string]string{
	"sslcert":          "set GATE_TLS_UPSTREAM_CERT_PATH",
	"sslkey":           "set GATE_TLS_UPSTREAM_KEY_PATH",
	"application_name": "leave it out: the database shows the gate as gate/reader, gate/writer and gate/ddl, so that its log tells which it was",
}

var plainKey = regexp.MustCompile(`^[a-z_]{1,40}$`)

// urlAdvice is told of each URL that can't be read; most often a password is to blame.
const urlAdvice = "must have the form postgres://user:password@host:port/database; in user and password @ is written %40, : %3A, / %2F, ? %3F, # %23 and % %25"

// parseURL reads a connection URL. Its errors name the setting and what to do,
// and nothing of the URL but the name of a key, since it holds a password.
// longest is GATE_DB_CONNECT_TIMEOUT_MS.
func parseURL(setting, raw string, set *tlsSet, longest time.Duration) (*pgconn.Config, error) {
	if raw == "" {
		return nil, fmt.Errorf("%s is empty: it %s", setting, urlAdvice)
	}
	u, err := url.Parse(raw)
	if err != nil || (u.Scheme != "postgres" && u.Scheme != "postgresql") || u.Fragment != "" || strings.Contains(u.EscapedPath(), "@") {
		return nil, fmt.Errorf("%s %s", setting, urlAdvice)
	}
	var timeout time.Duration
	for key, values := range u.Query() {
		switch {
		case key == keyTimeout:
			seconds, err := strconv.Atoi(values[0])
			if timeout = time.Duration(seconds) * time.Second; err != nil || len(values) > 1 || seconds < 1 || timeout > longest {
				return nil, fmt.Errorf("%s: %s must be whole seconds, from 1 to GATE_DB_CONNECT_TIMEOUT_MS (%d ms): set that for a longer time", setting, keyTimeout, longest.Milliseconds())
			}
		case slices.Contains(urlKeys, key) || slices.Contains(ownKeys, key):
		case keyAdvice[key] != "":
			return nil, fmt.Errorf("%s: %s is not taken: %s", setting, key, keyAdvice[key])
		default:
			if !plainKey.MatchString(key) {
				key = "a key in it"
			}
			return nil, fmt.Errorf("%s: %s is not taken: session settings are pinned by the gate; it %s", setting, key, urlAdvice)
		}
	}
	cfg, err := driverConfig(raw)
	if err != nil {
		return nil, fmt.Errorf("%s %s", setting, urlAdvice)
	}
	harden(cfg, set)
	cfg.ConnectTimeout = timeout
	return cfg, nil
}

// withURLs adds what URLs, by their settings, say of TLS.
func (t TLSConfig) withURLs(urls [][2]string) (TLSConfig, error) {
	var errs []error
	for _, pair := range urls {
		setting := pair[0]
		u, err := url.Parse(pair[1])
		if err != nil {
			continue // parseURL says so
		}
		modes, roots := u.Query()[keySSLMode], u.Query()[keySSLRootCert]
		for _, mode := range modes {
			switch {
			case mode == t.Mode:
			case mode == TLSVerifyFull:
				errs = append(errs, fmt.Errorf("%s: sslmode=verify-full and GATE_TLS_UPSTREAM_MODE=%s contradict each other: leave that setting out", setting, t.Mode))
			case t.Mode == TLSDisable:
				errs = append(errs, fmt.Errorf("%s: the gate knows sslmode=verify-full and, as GATE_TLS_UPSTREAM_MODE says here, disable: write one of them, or leave it out", setting))
			default:
				errs = append(errs, fmt.Errorf("%s: that sslmode is weaker than verify-full, which the gate demands: write sslmode=verify-full, and sslrootcert=FILE or GATE_TLS_UPSTREAM_CA_BUNDLE_PATH for the CA that signed the database's certificate. In development GATE_TLS_UPSTREAM_MODE=disable does without TLS", setting))
			}
		}
		for _, root := range roots {
			switch {
			case t.Mode == TLSDisable:
				errs = append(errs, fmt.Errorf("%s: sslrootcert is for TLS, and GATE_TLS_UPSTREAM_MODE is disable: leave one of them out", setting))
			case root == "system":
				errs = append(errs, fmt.Errorf("%s: sslrootcert=system is not taken: name the file of the CA that signed the database's certificate", setting))
			case t.CAPath == "":
				t.CAPath = root
			case t.CAPath != root:
				errs = append(errs, fmt.Errorf("%s: sslrootcert names another file than GATE_TLS_UPSTREAM_CA_BUNDLE_PATH or another address does, and it is one for all: leave one of them out", setting))
			}
		}
	}
	return t, errors.Join(errs...)
}

// driverConfig is a connection URL as the driver reads it, without what the gate reads.
func driverConfig(raw string) (*pgconn.Config, error) {
	if u, err := url.Parse(raw); err == nil {
		query, said := u.Query(), false
		for _, key := range ownKeys {
			said = said || query.Has(key)
			query.Del(key)
		}
		if said {
			u.RawQuery = query.Encode()
			raw = u.String()
		}
	}
	return pgconn.ParseConfigWithOptions(raw, pgconn.ParseConfigOptions{ConnStringAllowedKeys: urlKeys})
}

// UsesSocket reports whether a connection URL, as the driver reads it, leads to a
// Unix socket on any of its hosts; one that cannot be read, or is empty, does not.
func UsesSocket(raw string) bool {
	if raw == "" {
		return false
	}
	cfg, err := driverConfig(raw)
	if err != nil {
		return false
	}
	return strings.HasPrefix(cfg.Host, "/") || slices.ContainsFunc(cfg.Fallbacks, func(h *pgconn.FallbackConfig) bool { return strings.HasPrefix(h.Host, "/") })
}

// RoleOf is the role that a connection URL names, as the driver reads it; "" for
// an empty URL and for one that cannot be read.
func RoleOf(raw string) string {
	if raw == "" {
		return ""
	}
	cfg, err := driverConfig(raw)
	if err != nil {
		return ""
	}
	return cfg.User
}

// harden replaces everything of a parsed configuration that decides how safe a
// connection is. ParseConfig also reads the PG* environment, and its default
// sslmode falls back to plaintext: neither may reach us.
func harden(cfg *pgconn.Config, set *tlsSet) {
	hosts := []*pgconn.FallbackConfig{{Host: cfg.Host, Port: cfg.Port}}
	for _, fb := range cfg.Fallbacks {
		known := slices.ContainsFunc(hosts, func(h *pgconn.FallbackConfig) bool { return h.Host == fb.Host && h.Port == fb.Port })
		if !known {
			hosts = append(hosts, &pgconn.FallbackConfig{Host: fb.Host, Port: fb.Port})
		}
	}
	cfg.Fallbacks = hosts[1:]
	set.apply(cfg)
	cfg.SSLNegotiation = "postgres"
	cfg.RuntimeParams = nil
	cfg.ValidateConnect, cfg.AfterConnect = nil, nil
	cfg.RequireAuth, cfg.ChannelBinding, cfg.SSLCertMode = "none", "disable", "disable"
	if cfg.Password != "" {
		cfg.RequireAuth = "scram-sha-256"
		if set.config != nil {
			cfg.ChannelBinding = "require"
		}
	}
	if set.showsCertificate() {
		cfg.SSLCertMode = "require"
	}
}
