package pgexec

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"
)

// A Finding is one thing that a check of the server's access rules found. Its
// text is for the operator.
type Finding struct {
	Check   string // H1 to H8 of design/execution-and-wire.md part 8
	Warning bool   // worth telling; the baseline holds all the same
	Message string
}

// BaselineLimits is what the checks of pg_hba.conf cannot see.
const BaselineLimits = `pg_hba_file_rules shows the file, not what the server loaded; a quoted "all" looks like the word; clientname=DN is not shown; the rules of a pooler are elsewhere. The live checks H6 to H8 see what really runs.`

// Baseline holds the server's access rules against what the gate expects of
// them, for each role that the gate uses: what the file says (H1 to H5), what
// the connection is (H6), and that the server refuses what it should (H7, H8: a
// probe never answers a challenge, so no secret is shown). strict also refuses
// md5. err says that the checks could not be made.
func (db *DB) Baseline(ctx context.Context, strict bool) ([]Finding, error) {
	ctx, cancel := context.WithTimeout(ctx, 6*db.cfg.ConnectTimeout)
	defer cancel()
	b := &baseline{strict: strict, tls: db.tls.Load(), timeout: db.cfg.ConnectTimeout}
	done := make(map[string]bool)
	var roles []*pool
	for _, p := range db.pools() {
		if !done[p.login.User] {
			done[p.login.User] = true
			roles = append(roles, p)
		}
	}
	if err := b.rules(ctx, db.writer, roles); err != nil {
		return nil, err
	}
	for _, p := range roles {
		if err := b.live(ctx, p); err != nil {
			return nil, err
		}
	}
	return b.findings, nil
}

// baseline is one run of the checks.
type baseline struct {
	strict   bool
	tls      *tlsSet
	timeout  time.Duration
	findings []Finding
}

func (b *baseline) fail(check, format string, args ...any) {
	b.findings = append(b.findings, Finding{Check: check, Message: fmt.Sprintf(format, args...)})
}

func (b *baseline) warn(check, format string, args ...any) {
	b.findings = append(b.findings, Finding{Check: check, Warning: true, Message: fmt.Sprintf(format, args...)})
}

// fresh connects only to look, beside the pool.
func (p *pool) fresh(ctx context.Context) (*conn, error) {
	const attempts = 3 // as in connect: the first ones learn about the server
	for range attempts {
		c, again, err := p.connectOnce(ctx)
		if err != nil {
			return nil, connectFault(err)
		}
		if !again {
			return c, nil
		}
		c.close()
	}
	return nil, errors.New("the server's settings change while the gate connects")
}

// live makes H6 to H8 for one role.
func (b *baseline) live(ctx context.Context, p *pool) error {
	c, err := p.fresh(ctx)
	if err != nil {
		return err
	}
	defer c.close()
	role := p.login.User
	systemUser := "NULL"
	if c.major >= 16 {
		systemUser = "system_user"
	}
	ask, row := query(`SELECT s.ssl::pg_catalog.text, s.version, s.client_dn, ` + systemUser + ` FROM pg_catalog.pg_stat_ssl AS s WHERE s.pid = pg_catalog.pg_backend_pid()`)
	refused, err := c.exchange(ctx, time.Now().Add(b.timeout), segment{ask})
	if refused != nil {
		err = refused
	}
	if err != nil {
		return fmt.Errorf("the state of the gate's own connection cannot be read: %w", err)
	}
	switch version := row.text(1); {
	case row.text(0) != "true":
		b.fail("H6", "The connection of %s is not encrypted.", role)
	case version != "TLSv1.2" && version != "TLSv1.3":
		b.fail("H6", "The connection of %s uses %s; at least TLS 1.2 is wanted (ssl_min_protocol_version).", role, version)
	case b.tls.showsCertificate() && row.text(2) == "":
		b.fail("H6", "The server did not take the client certificate of %s: set ssl_ca_file there.", role)
	}
	if c.major >= 16 && row.text(3) == "" {
		b.fail("H6", "The server let %s in without asking who it is (trust).", role)
	}
	b.probe(ctx, "H7", "without TLS", c, p, nil)
	if encrypted, ok := c.net.(*tls.Conn); ok && b.tls.showsCertificate() {
		b.probe(ctx, "H8", "over TLS without a client certificate", c, p, withoutCertificate(encrypted))
	}
	return nil
}

// withoutCertificate is for another connection to a server that was verified in
// full just now: it has to show the same certificate again.
func withoutCertificate(verified *tls.Conn) *tls.Config {
	shown := verified.ConnectionState().PeerCertificates[0]
	return &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: true, VerifyConnection: func(s tls.ConnectionState) error {
		if len(s.PeerCertificates) == 0 || !s.PeerCertificates[0].Equal(shown) {
			return errors.New("another server answers")
		}
		return nil
	}}
}

// probe begins to log in in a way that the server should refuse, and goes away
// at its first answer.
func (b *baseline) probe(ctx context.Context, check, how string, c *conn, p *pool, secure *tls.Config) {
	answer, err := firstAnswer(ctx, c.upstream.Host, secure, map[string]string{"user": p.login.User, "database": p.login.Database}, b.timeout)
	switch e, refused := answer.(*pgproto3.ErrorResponse); {
	case err != nil:
		b.fail(check, "A login of %s %s could not be tried: %v", p.login.User, how, err)
	case !refused:
		b.fail(check, "The server goes on with a login of %s %s (%T). Its pg_hba.conf should have hostssl lines alone, with clientcert=verify-full where certificates are used.", p.login.User, how, answer)
	case e.Code != "28000":
		b.fail(check, "The server refuses a login of %s %s for another reason than its access rules (%s).", p.login.User, how, e.Code)
	}
}

// firstAnswer is what a server says to a StartupMessage.
func firstAnswer(ctx context.Context, address string, secure *tls.Config, who map[string]string, timeout time.Duration) (pgproto3.BackendMessage, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(timeout)); err != nil {
		return nil, err
	}
	if secure != nil {
		if conn, err = askForTLS(ctx, conn, secure); err != nil {
			return nil, err
		}
	}
	fe := pgproto3.NewFrontend(conn, conn)
	fe.SetMaxBodyLen(64 << 10)
	fe.Send(&pgproto3.StartupMessage{ProtocolVersion: pgproto3.ProtocolVersionNumber, Parameters: who})
	if err := fe.Flush(); err != nil {
		return nil, err
	}
	return fe.Receive()
}

func askForTLS(ctx context.Context, conn net.Conn, secure *tls.Config) (net.Conn, error) {
	request, err := new(pgproto3.SSLRequest).Encode(nil)
	if err != nil {
		return nil, err
	}
	if _, err := conn.Write(request); err != nil {
		return nil, err
	}
	var answer [1]byte
	if _, err := conn.Read(answer[:]); err != nil {
		return nil, err
	}
	if answer[0] != 'S' {
		return nil, errors.New("the server offers no TLS")
	}
	encrypted := tls.Client(conn, secure)
	return encrypted, encrypted.HandshakeContext(ctx)
}

// An hbaRule is one line of pg_hba.conf as the server's view shows it.
type hbaRule struct {
	Line      int      `json:"line"`
	Type      string   `json:"type"`
	Databases []string `json:"databases"`
	Users     []string `json:"users"`
	Address   string   `json:"address"`
	Netmask   string   `json:"netmask"`
	Method    string   `json:"method"`
	Options   []string `json:"options"`
	Error     string   `json:"error"`
	// Fits says, for each role in the order asked for, whether the line's user
	// and database are its own, and whether the user is and the database is
	// replication.
	Fits        []bool `json:"fits"`
	Replication []bool `json:"replication"`
}

func (r hbaRule) network() bool { return strings.HasPrefix(r.Type, "host") }

func (r hbaRule) option(name string) bool {
	for _, o := range r.Options {
		if o == name {
			return true
		}
	}
	return false
}

// rulesSQL reads the file as the server parses it now. $1 holds the roles. The
// order is that in which the server goes through the lines; lines with an error
// have no number from 16 on.
func rulesSQL(major int) string {
	order, pattern := "h.line_number", "false"
	if major >= 16 {
		order, pattern = "h.rule_number NULLS FIRST", "(w LIKE '/%' AND name ~ pg_catalog.substr(w, 2))"
	}
	fits := func(words, name, all string) string {
		return strings.ReplaceAll(`EXISTS (SELECT FROM (SELECT `+name+` AS name) AS n, pg_catalog.unnest(`+words+`) AS w WHERE w = 'all' OR w = name OR `+pattern+all+`)`, "PG.", "pg_catalog.")
	}
	user := fits("h.user_name", "r.role", ` OR (w LIKE '+%' AND EXISTS (SELECT FROM PG.pg_roles AS g WHERE g.rolname = PG.substr(w, 2) AND PG.pg_has_role(r.role::PG.name, g.oid, 'MEMBER')))`)
	database := fits("h.database", "PG.current_database()::PG.text", ` OR (w = 'sameuser' AND r.role = name)
   OR (w IN ('samerole', 'samegroup') AND EXISTS (SELECT FROM PG.pg_roles AS g WHERE g.rolname = name AND PG.pg_has_role(r.role::PG.name, g.oid, 'MEMBER')))`)
	roles := `pg_catalog.unnest($1::pg_catalog.text[]) WITH ORDINALITY AS r(role, i)`
	return `SELECT pg_catalog.json_agg(pg_catalog.json_build_object('line', h.line_number, 'type', h.type, 'databases', h.database, 'users', h.user_name,
 'address', h.address, 'netmask', h.netmask, 'method', h.auth_method, 'options', h.options, 'error', h.error,
 'fits', (SELECT pg_catalog.json_agg(` + user + ` AND ` + database + ` ORDER BY r.i) FROM ` + roles + `),
 'replication', (SELECT pg_catalog.json_agg(` + user + ` AND 'replication' = ANY (h.database) ORDER BY r.i) FROM ` + roles + `)) ORDER BY ` + order + `)::pg_catalog.text,
 pg_catalog.host(pg_catalog.inet_client_addr())
 FROM pg_catalog.pg_hba_file_rules AS h`
}

// rules makes H1 to H5.
func (b *baseline) rules(ctx context.Context, as *pool, roles []*pool) error {
	c, err := as.fresh(ctx)
	if err != nil {
		return err
	}
	defer c.close()
	names := make([]string, len(roles))
	for i, p := range roles {
		names[i] = p.login.User
	}
	ask, row := query(rulesSQL(c.major))
	ask.oids, ask.params = []uint32{1009}, [][]byte{[]byte(textArray(names))}
	refused, err := c.exchange(ctx, time.Now().Add(b.timeout), segment{ask})
	switch {
	case err != nil:
		return fmt.Errorf("the server's access rules cannot be read: %w", err)
	case refused != nil && refused.Code == "42501":
		b.fail("H1", "%s may not read the server's access rules. Run, as a superuser: GRANT SELECT ON pg_hba_file_rules TO %[1]s; GRANT EXECUTE ON FUNCTION pg_hba_file_rules() TO %[1]s; (a managed server may not allow that).", as.login.User)
		return nil
	case refused != nil:
		b.fail("H1", "The server's access rules cannot be read: %s", clip(refused.Message))
		return nil
	}
	var rules []hbaRule
	if err := json.Unmarshal([]byte(row.text(0)), &rules); err != nil {
		return fmt.Errorf("the server's access rules cannot be understood: %w", err)
	}
	b.file(rules)
	for i, name := range names {
		b.firstFit(rules, i, name, row.text(1))
	}
	return nil
}
