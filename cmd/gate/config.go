package main

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/agnivade/levenshtein"
	"github.com/caarlos0/env/v11"

	"writegate/agentctl/egress"
	"writegate/agentctl/toolcheck"
	"writegate/commands/fence"
	"writegate/eventlog/frame"
	"writegate/http/gateapi"
	"writegate/http/httpd"
	"writegate/http/mcpapi"
	"writegate/sqlgate/pgexec"
	"writegate/sqlgate/pgwire"
)

// testSettings are read by the tests and by the helpers that start PostgreSQL
// for them, never by the service; they are let through so that both can run in
// one environment.
var timelineForm = regexp.MustCompile(`^[0-9A-F]{8}$`)

var testSettings = []string{"GATE_TEST_DATABASE_URL"}

// maxBypass is how far ahead an emergency bypass may end (spec/decisions.md part 2).
const maxBypass = 24 * time.Hour

// profileProduction refuses whatever is unsafe (spec/gate.md part 5,
// design/execution-and-wire.md part 7).
const profileProduction = "production"

// minProductionToken is the shortest operator token that production takes.
const minProductionToken = 24

// A setting is one variable with its documentation, for `gate config`.
type setting struct {
	Group   string `json:"group,omitempty"`
	Name    string `json:"name"`
	Value   string `json:"value"`
	Default string `json:"default"`
	Origin  string `json:"origin"` // environment, file, profile or default
	Doc     string `json:"doc"`
}

// loadSettings reads the settings from environ ("NAME=value" each). The error
// lists every fault at once, a line each.
func loadSettings(environ []string, now time.Time) (*settings, error) {
	s, faults := readSettings(environ, now)
	if len(faults) > 0 {
		return nil, faultList("the settings", faults)
	}
	return s, nil
}

func readSettings(environ []string, now time.Time) (*settings, []string) {
	environ, faults := withSecretFiles(environ)
	values := env.ToMap(environ)
	s := new(settings)
	faults = append(faults, unknownNames(values)...)
	faults = append(faults, parseInto(s, values)...)
	s.applyProfile(values)
	faults = append(faults, s.rangeFaults()...)
	faults = append(faults, s.meaningFaults(now)...)
	faults = append(faults, emptyFaults(s, values)...)
	if _, err := toolcheck.ParseSecrets(environ); err != nil {
		faults = append(faults, err.Error())
	}
	return s, faults
}

func faultList(what string, faults []string) error {
	return fmt.Errorf("%s have %d fault(s):\n  %s", what, len(faults), strings.Join(faults, "\n  "))
}

// loadServing is loadSettings for a gate that is to serve: it also finds what is wrong
// with the database's addresses and with the files that the settings name. Where that
// alone is wrong, the settings come with the error.
func loadServing(environ []string, now time.Time) (*settings, error) {
	s, faults := readSettings(environ, now)
	known := len(faults)
	for _, found := range s.startFaults() {
		setting, _, _ := strings.Cut(found, " ")
		if !slices.ContainsFunc(faults[:known], func(f string) bool { return strings.HasPrefix(f, setting+" ") }) { // else it is said already
			faults = append(faults, found)
		}
	}
	switch {
	case len(faults) == 0:
		return s, nil
	case known > 0:
		s = nil
	}
	return s, faultList("the settings", faults)
}

// startFaults looks at what only a gate that starts needs. Nothing is connected to.
func (s *settings) startFaults() []string {
	errs := []error{s.databaseConfig().Check()}
	if s.LogFenceURL != "" {
		at := s.fenceDatabase()
		errs = append(errs, at.Check())
	}
	if s.TLSCert != "" && s.TLSKey != "" {
		_, err := s.listenerTLS()
		errs = append(errs, err)
	}
	if path := s.wireUsersPath(); path != "" {
		if _, err := pgwire.OpenUsers(path); s.WireUsersFile != "" || !errors.Is(err, fs.ErrNotExist) { // else it is made
			errs = append(errs, err)
		}
	}
	if s.SigningPrivateKey != "" && s.SigningPublicKey != "" {
		_, err := s.signingKey()
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return strings.Split(err.Error(), "\n")
	}
	return nil
}

// applyProfile sets what production has another default for.
func (s *settings) applyProfile(values map[string]string) {
	if s.Profile != profileProduction {
		return
	}
	if _, set := values["GATE_TLS_REQUIRE_CLIENT_CERT"]; !set {
		s.TLSRequireClientCert = true
	}
	if _, set := values["GATE_ENFORCE_PG_HBA_BASELINE"]; !set {
		s.EnforceHBA = baselineEnforce
	}
}

// fileSuffix behind the name of a secret setting names a file that holds its value, as
// container platforms hand secrets out.
const fileSuffix = "_FILE"

// maxSecretFile is the most bytes of such a file.
const maxSecretFile = 64 << 10

// withSecretFiles puts what the files hold into the environment. A file that can't be
// read is a fault, and its setting is left out.
func withSecretFiles(environ []string) (resolved, faults []string) {
	secrets := append(secretNames(reflect.TypeFor[settings]()), secretNames(reflect.TypeFor[controlPlaneSettings]())...)
	for _, pair := range environ {
		variable, path, _ := strings.Cut(pair, "=")
		name, isFile := strings.CutSuffix(variable, fileSuffix)
		ofTool := strings.HasPrefix(name, toolcheck.SecretPrefix)
		if _, itself := lookUp(environ, variable+"_HOST"); !isFile || ofTool && itself || !ofTool && !slices.Contains(secrets, name) {
			resolved = append(resolved, pair)
			continue
		}
		text, err := readAtMost(path, maxSecretFile+1)
		value := strings.TrimRight(string(text), "\r\n")
		_, both := lookUp(environ, name)
		switch {
		case both:
			faults = append(faults, fmt.Sprintf("%s and %s are both given: leave one out", name, variable))
		case err != nil:
			faults = append(faults, fmt.Sprintf("%s: %v", variable, err))
		case value == "" || len(text) > maxSecretFile:
			faults = append(faults, fmt.Sprintf("%s: %s must hold the value and nothing else; it is empty or larger than %d bytes", variable, path, maxSecretFile))
		default:
			resolved = append(resolved, name+"="+value)
		}
	}
	return resolved, faults
}

func secretNames(t reflect.Type) (names []string) {
	for i := range t.NumField() {
		if tag := t.Field(i).Tag; tag.Get("secret") == "true" {
			names = append(names, tag.Get("env"))
		}
	}
	return names
}

// unknownNames names every GATE_* variable that no page knows, with the
// nearest known one: a misspelt setting would otherwise protect nothing.
func unknownNames(values map[string]string) []string {
	known := settingNames()
	var faults []string
	for name := range values {
		if !strings.HasPrefix(name, "GATE_") || slices.Contains(known, name) || slices.Contains(testSettings, name) ||
			(strings.HasPrefix(name, toolcheck.SecretPrefix) && len(name) > len(toolcheck.SecretPrefix)) {
			continue
		}
		nearest := slices.MinFunc(known, func(a, b string) int {
			return cmp.Or(cmp.Compare(levenshtein.ComputeDistance(name, a), levenshtein.ComputeDistance(name, b)), cmp.Compare(a, b))
		})
		faults = append(faults, fmt.Sprintf("%s is not a setting of the gate. Did you mean %s? `gate config` lists all of them.", name, nearest))
	}
	slices.Sort(faults)
	return faults
}

// settingNames lists the variables of the settings struct in its order.
func settingNames() []string { return namesOf(reflect.TypeFor[settings]()) }

func namesOf(t reflect.Type) []string {
	names := make([]string, 0, t.NumField())
	for i := range t.NumField() {
		names = append(names, t.Field(i).Tag.Get("env"))
	}
	return names
}

// parseInto fills a settings struct. The faults name the variable, where the library's
// errors name fields; what they are about has its default, so that all else is judged too.
func parseInto(s any, values map[string]string) (faults []string) {
	err := env.ParseWithOptions(s, env.Options{Environment: values})
	if err == nil {
		return nil
	}
	var all env.AggregateError
	if !errors.As(err, &all) {
		return []string{err.Error()}
	}
	rest := maps.Clone(values)
	for _, e := range all.Errors {
		var p env.ParseError
		if !errors.As(e, &p) {
			faults = append(faults, e.Error())
			continue
		}
		f, _ := reflect.TypeOf(s).Elem().FieldByName(p.Name)
		faults = append(faults, fmt.Sprintf("%s must be %s: %s", f.Tag.Get("env"), kindWords(f.Type.Kind()), f.Tag.Get("doc")))
		delete(rest, f.Tag.Get("env"))
	}
	reflect.ValueOf(s).Elem().SetZero()
	_ = env.ParseWithOptions(s, env.Options{Environment: rest}) // whatever is left can be read
	return faults
}

// emptyFaults are settings that are given and empty, as a script's unset variable
// leaves them: what they were to say is lost, and the default may protect less.
func emptyFaults(s any, values map[string]string) []string {
	var faults []string
	t := reflect.TypeOf(s).Elem()
	for i := range t.NumField() {
		tag := t.Field(i).Tag
		value, given := values[tag.Get("env")]
		if given && value == "" && (tag.Get("envDefault") != "" || tag.Get("empty") == "refused") {
			faults = append(faults, fmt.Sprintf("%s is given and empty: give it a value, or leave it out altogether", tag.Get("env")))
		}
	}
	return faults
}

func kindWords(k reflect.Kind) string {
	if k == reflect.Bool {
		return "true or false"
	}
	return "a whole number"
}

// rangeFaults checks what the tags say: ranges and closed sets.
func (s *settings) rangeFaults() []string { return rangeFaults(s) }

// rangeFaults is that for any struct with such tags; it takes a pointer to one.
func rangeFaults(s any) []string {
	var faults []string
	v := reflect.ValueOf(s).Elem()
	for i := range v.NumField() {
		f, value := v.Type().Field(i), v.Field(i)
		name, text := f.Tag.Get("env"), fmt.Sprint(value.Interface())
		if lo, hi := f.Tag.Get("min"), f.Tag.Get("max"); lo != "" && !within(value.Int(), lo, hi) {
			faults = append(faults, fmt.Sprintf("%s is %s and must be from %s to %s: %s", name, text, lo, hi, f.Tag.Get("doc")))
		}
		if set, ok := f.Tag.Lookup("oneof"); ok && !slices.Contains(strings.Split(set, ","), text) {
			faults = append(faults, fmt.Sprintf("%s is %q and must be one of %s", name, text, strings.ReplaceAll(strings.TrimPrefix(set, ","), ",", ", ")))
		}
	}
	return faults
}

// zeroText is the text of a field left at its default.
func zeroText(f reflect.StructField) string {
	if d := f.Tag.Get("envDefault"); d != "" {
		return d
	}
	return fmt.Sprint(reflect.Zero(f.Type).Interface())
}

func within(n int64, lo, hi string) bool {
	l, errL := strconv.ParseInt(lo, 10, 64)
	h, errH := strconv.ParseInt(hi, 10, 64)
	return errL == nil && errH == nil && n >= l && n <= h
}

// meaningFaults checks settings against each other and against the moment.
func (s *settings) meaningFaults(now time.Time) []string {
	var faults []string
	if _, err := s.operators(); err != nil {
		faults = append(faults, "GATE_OPERATOR_TOKEN or GATE_OPERATOR_TOKENS: "+err.Error())
	}
	if _, err := httpd.ParseProxies(s.TrustedProxies); err != nil {
		faults = append(faults, "GATE_TRUSTED_PROXIES: "+err.Error())
	}
	if _, err := httpd.ParseNames(s.AllowedHosts); err != nil {
		faults = append(faults, "GATE_ALLOWED_HOSTS: "+err.Error())
	}
	if _, err := s.projectKeys(); err != nil {
		faults = append(faults, "GATE_PROJECT_KEYS: "+err.Error())
	}
	if _, err := mcpapi.ParseClaims(s.MCPClaims); err != nil {
		faults = append(faults, "GATE_MCP_CLAIMS: "+err.Error())
	}
	faults = append(faults, s.agentIssuerFaults()...)
	if _, err := egress.ParseRules(s.EgressAllowCIDRs, ""); err != nil {
		faults = append(faults, "GATE_EGRESS_ALLOW_CIDRS: "+err.Error())
	}
	if _, err := egress.ParseRules("", s.EgressAllowPorts); err != nil {
		faults = append(faults, "GATE_EGRESS_ALLOW_PORTS: "+err.Error())
	}
	if s.DatabaseTimeline != "" && !timelineForm.MatchString(s.DatabaseTimeline) {
		faults = append(faults, "GATE_DATABASE_TIMELINE must be eight hex digits in capitals, as details.timeline of the refusal and execution_dispatched have them")
	}
	if strings.ContainsAny(s.SearchPath, ",\"") || s.SearchPath == "" || strings.HasPrefix(s.SearchPath, "pg_") || len(s.SearchPath) > 63 {
		faults = append(faults, "GATE_SEARCH_PATH must be the plain name of one schema, of 63 bytes at most, that is not PostgreSQL's own")
	}
	if problem := pgexec.MarkerTableFault(s.OutcomeMarkerTable); s.OutcomeMarkerTable != "" && problem != "" {
		faults = append(faults, "GATE_OUTCOME_MARKER_TABLE "+problem)
	}
	for setting, addr := range s.listenAddrs() {
		if _, port, err := net.SplitHostPort(addr); err != nil || port == "" {
			faults = append(faults, fmt.Sprintf("%s is %q and must be an address with a port, such as 127.0.0.1:6543", setting, addr))
		}
	}
	faults = append(faults, s.fenceFaults()...)
	faults = append(faults, s.placeFaults()...)
	faults = append(faults, s.tlsFaults()...)
	faults = append(faults, s.wireFaults()...)
	faults = append(faults, s.signingFaults()...)
	faults = append(faults, s.witnessFaults()...)
	faults = append(faults, s.bypassFaults(now)...)
	if s.Profile == profileProduction {
		faults = append(faults, s.productionFaults()...)
	}
	return faults
}

// bypassFaults holds spec/decisions.md part 2: a bypass has a reason and an end.
func (s *settings) bypassFaults(now time.Time) []string {
	if s.Mode != "emergency_bypass" {
		return nil
	}
	var faults []string
	if strings.TrimSpace(s.BypassReason) == "" {
		faults = append(faults, "GATE_EMERGENCY_BYPASS_REASON must say why the gate is bypassed")
	}
	until, err := time.Parse(time.RFC3339, s.BypassUntil)
	switch {
	case err != nil:
		faults = append(faults, "GATE_EMERGENCY_BYPASS_UNTIL must be a moment like 2026-01-31T18:00:00Z")
	case until.After(now.Add(maxBypass)):
		faults = append(faults, "GATE_EMERGENCY_BYPASS_UNTIL must be at most 24 hours ahead")
	}
	return faults
}

// tlsFaults are paths without their partners: half a protection is none.
func (s *settings) tlsFaults() []string {
	var faults []string
	if (s.TLSCert == "") != (s.TLSKey == "") {
		faults = append(faults, "GATE_TLS_CERT_PATH and GATE_TLS_KEY_PATH go together: set both or none")
	}
	if s.TLSClientCA != "" && s.TLSCert == "" {
		faults = append(faults, "GATE_TLS_CLIENT_CA_BUNDLE_PATH needs GATE_TLS_CERT_PATH and GATE_TLS_KEY_PATH: without TLS nobody shows a certificate")
	}
	if s.TLSRequireClientCert && s.TLSClientCA == "" && s.Profile != profileProduction {
		faults = append(faults, "GATE_TLS_REQUIRE_CLIENT_CERT needs GATE_TLS_CLIENT_CA_BUNDLE_PATH, the authorities that sign the clients' certificates")
	}
	if (s.UpstreamTLSCert == "") != (s.UpstreamTLSKey == "") {
		faults = append(faults, "GATE_TLS_UPSTREAM_CERT_PATH and GATE_TLS_UPSTREAM_KEY_PATH go together: set both or none")
	}
	return faults
}

// productionFaults names everything that production refuses.
func (s *settings) productionFaults() []string {
	var faults []string
	for _, rule := range []struct {
		broken bool
		fault  string
	}{
		{s.TLSCert == "", "GATE_TLS_CERT_PATH and GATE_TLS_KEY_PATH must be set in production: the API is never cleartext there"},
		{s.TLSClientCA == "", "GATE_TLS_CLIENT_CA_BUNDLE_PATH must be set in production: clients show a certificate there"},
		{!s.TLSRequireClientCert, "GATE_TLS_REQUIRE_CLIENT_CERT must not be false in production"},
		{s.UpstreamTLSMode != pgexec.TLSVerifyFull, "GATE_TLS_UPSTREAM_MODE must be verify-full in production"},
		{s.OperatorToken == "" && s.OperatorTokens == "", "GATE_OPERATOR_TOKEN or GATE_OPERATOR_TOKENS must be set in production"},
		{s.AuditFsync != "required", "GATE_AUDIT_FSYNC must be required in production"},
		{!s.SigningEnabled, "GATE_EVIDENCE_SIGNING_ENABLED must be true in production: evidence is signed there"},
		{s.WireEnabled, "GATE_PGWIRE_ENABLED must be false in production: the wire listener is for the lab"},
	} {
		if rule.broken {
			faults = append(faults, rule.fault)
		}
	}
	for name, url := range map[string]string{"GATE_DATABASE_URL": s.DatabaseURL, "GATE_DATABASE_READ_URL": s.DatabaseReadURL, "GATE_DATABASE_DDL_URL": s.DatabaseDDLURL, pgexec.SettingFence: s.LogFenceURL} {
		if pgexec.UsesSocket(url) {
			faults = append(faults, name+" must name a host in production: a Unix socket has no TLS")
		}
	}
	slices.Sort(faults)
	return faults
}

// operators are the operator tokens; production takes no short ones.
func (s *settings) operators() (*httpd.Operators, error) {
	least := 1
	if s.Profile == profileProduction {
		least = minProductionToken
	}
	return httpd.ParseOperators(s.OperatorToken, s.OperatorTokens, least)
}

// bypassUntil is the end of the bypass, the zero time in other modes.
func (s *settings) bypassUntil() time.Time {
	if s.Mode != "emergency_bypass" {
		return time.Time{}
	}
	t, _ := time.Parse(time.RFC3339, s.BypassUntil) // checked at load
	return t
}

// A namedPlace is a path that a setting names, or one that is made beside it.
type namedPlace struct {
	setting, path string
	written       bool // the gate writes there; else it reads what the operator put there
	folder        bool // all below it is the gate's
}

// placeFaults finds settings that name one file twice, or a file in a folder that
// belongs to something else, or no place for a file: what is derived would be written
// over the log, or over a key. Links and other spellings count as what they lead to.
func (s *settings) placeFaults() []string {
	places := s.places()
	said := map[string]bool{}
	for setting, path := range map[string]string{"GATE_AUDIT_WAL_PATH": s.AuditWALPath, "GATE_AUDIT_LOG_PATH": s.AuditLogPath, "GATE_AUDIT_INDEX_PATH": s.indexPath()} {
		if full, err := filepath.Abs(path); err == nil && path != "" && isDevice(full) && (setting != "GATE_AUDIT_LOG_PATH" || full != os.DevNull) {
			said[fmt.Sprintf("%s names %s, which is no place for a file: the gate puts files there and moves away what is not its own. Name a file", setting, path)] = true
		}
	}
	for i, a := range places {
		for _, b := range places[i+1:] {
			if a.setting == b.setting || a.path == "" || b.path == "" || !a.written && !b.written {
				continue
			}
			if a.meets(&b) {
				said[fmt.Sprintf("%s and %s name one place (%s, %s): one would be written over the other. Give each a place of its own", a.setting, b.setting, a.path, b.path)] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(said))
}

// isDevice tells a place that the system made, or something else than a file or what
// leads to one.
func isDevice(path string) bool {
	info, err := os.Stat(path)
	return err == nil && !info.Mode().IsRegular() && !info.IsDir() || filepath.Dir(path) == "/dev" || below(path, "/dev/fd") || below(path, "/proc") || below(path, "/sys")
}

// meets reports whether two places are one, or one lies in a folder that is the other.
func (a *namedPlace) meets(b *namedPlace) bool {
	return a.path == b.path || sameFile(a.path, b.path) || a.folder && below(b.path, a.path) || b.folder && below(a.path, b.path)
}

// notOwn refuses a path of the command line that is one of the gate's own places, or
// in one: what is written there would be taken for the gate's.
func (s *settings) notOwn(path string) error {
	given := namedPlace{path: leadsTo(path)}
	for _, own := range s.places() {
		if own.path != "" && own.meets(&given) {
			return fmt.Errorf("%s is a place of the gate's own, or in one (%s, %s). Name another", path, own.setting, own.path)
		}
	}
	return nil
}

// places are all that settings name.
func (s *settings) places() []namedPlace {
	places := []namedPlace{
		{setting: "GATE_AUDIT_WAL_PATH", path: s.AuditWALPath, written: true},
		{setting: "GATE_AUDIT_LOG_PATH", path: s.AuditLogPath, written: true},
		{setting: "GATE_AUDIT_INDEX_PATH", path: s.indexPath(), written: true},
		{setting: "GATE_AUDIT_INDEX_PATH", path: s.indexPath() + ".tmp", written: true}, // before it gets its name
		{setting: "GATE_APPROVAL_DB_PATH", path: s.ApprovalDBPath, written: true, folder: true},
		{setting: "GATE_POLICY_DIR", path: s.PolicyDir, written: true, folder: true},
		{setting: "GATE_EVIDENCE_SIGNING_PRIVATE_KEY_PATH", path: s.SigningPrivateKey},
		{setting: "GATE_EVIDENCE_SIGNING_PUBLIC_KEY_PATH", path: s.SigningPublicKey},
		{setting: "GATE_PGWIRE_USERS_FILE", path: s.wireUsersPath()},
		{setting: "GATE_TLS_CERT_PATH", path: s.TLSCert},
		{setting: "GATE_TLS_KEY_PATH", path: s.TLSKey},
		{setting: "GATE_TLS_CLIENT_CA_BUNDLE_PATH", path: s.TLSClientCA},
		{setting: "GATE_AGENT_OIDC_CA_BUNDLE_PATH", path: s.AgentOIDCCA},
		{setting: "GATE_TLS_UPSTREAM_CA_BUNDLE_PATH", path: s.UpstreamTLSCA},
		{setting: "GATE_TLS_UPSTREAM_CERT_PATH", path: s.UpstreamTLSCert},
		{setting: "GATE_TLS_UPSTREAM_KEY_PATH", path: s.UpstreamTLSKey},
	}
	for _, suffix := range []string{frame.HeadSuffix, frame.NextSuffix, frame.LockSuffix, fence.Suffix} {
		places = append(places, namedPlace{"GATE_AUDIT_WAL_PATH", s.AuditWALPath + suffix, true, false})
	}
	places = append(places, namedPlace{"GATE_AUDIT_LOG_PATH", s.AuditLogPath + frame.LockSuffix, true, false})
	for _, suffix := range []string{frame.SegmentsSuffix, frame.QuarantineSuffix, frame.CheckpointsSuffix, frame.RetiredSuffix} {
		places = append(places, namedPlace{"GATE_AUDIT_WAL_PATH", s.AuditWALPath + suffix, true, true})
	}
	for i := range places {
		places[i].path = leadsTo(places[i].path)
	}
	return places
}

// leadsTo gives the place that a path means, which need not be there yet.
func leadsTo(path string) string {
	if path == "" {
		return ""
	}
	full, err := filepath.Abs(path)
	if err != nil {
		return path
	}
	for rest, at := "", full; ; rest, at = filepath.Join(filepath.Base(at), rest), filepath.Dir(at) {
		if real, err := filepath.EvalSymlinks(at); err == nil {
			return filepath.Join(real, rest)
		}
		if at == filepath.Dir(at) {
			return full
		}
	}
}

// sameFile reports whether two names are of one regular file or folder.
func sameFile(a, b string) bool {
	x, errX := os.Stat(a)
	y, errY := os.Stat(b)
	return errX == nil && errY == nil && os.SameFile(x, y) && (x.Mode().IsRegular() || x.IsDir())
}

func below(path, folder string) bool {
	return strings.HasPrefix(path, folder+string(filepath.Separator))
}

// indexPath is where the sparse index lies.
func (s *settings) indexPath() string {
	return cmp.Or(s.AuditIndexPath, filepath.Join(filepath.Dir(s.AuditWALPath), "audit_index_v1.json"))
}

// auditFiles are the folders whose files POST /audit/verify may read. A folder
// that is reached through a link is known by both names.
func (s *settings) auditFiles() (gateapi.AuditFiles, error) {
	var f gateapi.AuditFiles
	var err error
	if f.WAL, err = filepath.Abs(s.AuditWALPath); err != nil {
		return f, err
	}
	if f.JSONL, err = filepath.Abs(s.AuditLogPath); err != nil {
		return f, err
	}
	for _, dir := range append(splitList(s.AuditVerifyDirs), filepath.Dir(f.WAL), f.WAL+frame.SegmentsSuffix, filepath.Dir(f.JSONL)) {
		if dir, err = filepath.Abs(dir); err != nil {
			return f, err
		}
		f.Roots = append(f.Roots, dir)
		if real, err := filepath.EvalSymlinks(dir); err == nil && real != dir {
			f.Roots = append(f.Roots, real)
		}
	}
	return f, nil
}

func splitList(text string) []string {
	var out []string
	for part := range strings.SplitSeq(text, ",") {
		if part = strings.TrimSpace(part); part != "" {
			out = append(out, part)
		}
	}
	return out
}

func millis(n int) time.Duration  { return time.Duration(n) * time.Millisecond }
func seconds(n int) time.Duration { return time.Duration(n) * time.Second }
func days(n int) time.Duration    { return time.Duration(n) * 24 * time.Hour }

// describe lists every setting with its value and origin; secrets are masked.
func (s *settings) describe(environ []string) []setting { return describe(s, environ) }

// plainAddresses reports whether a text is addresses alone, separated by commas: what
// has a user or a query, or can't be read, may hold a password.
func plainAddresses(text string) bool {
	for part := range strings.SplitSeq(text, ",") {
		u, err := url.Parse(strings.TrimSpace(part))
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" || strings.Contains(part, "@") {
			return false
		}
	}
	return true
}

func describe(s any, environ []string) []setting {
	values := env.ToMap(environ)
	v := reflect.ValueOf(s).Elem()
	list := make([]setting, 0, v.NumField())
	group := ""
	for i := range v.NumField() {
		f := v.Type().Field(i)
		group = cmp.Or(f.Tag.Get("group"), group)
		e := setting{Group: group, Name: f.Tag.Get("env"), Value: fmt.Sprint(v.Field(i).Interface()), Default: f.Tag.Get("envDefault"), Origin: "default", Doc: f.Tag.Get("doc")}
		if _, ok := values[e.Name]; ok {
			e.Origin = "environment"
		} else if _, ok := values[e.Name+fileSuffix]; ok && f.Tag.Get("secret") == "true" {
			e.Origin = "file"
		} else if e.Value != zeroText(f) {
			e.Origin = "profile"
		}
		if e.Value != "" && (f.Tag.Get("secret") == "true" || strings.Contains(e.Name, "_URL") && !plainAddresses(e.Value)) {
			e.Value = "(set, not shown)"
		}
		list = append(list, e)
	}
	return list
}
