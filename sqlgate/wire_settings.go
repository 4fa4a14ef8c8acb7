package sqlgate

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"writegate/sqlgate/pgexec"
)

// wireSettings are the settings that a connection has made, by their names in
// small letters, as SHOW says them. A value never changes in place: a block keeps
// the one of its beginning, and goes back to it.
type wireSettings struct {
	session map[string]string
	local   map[string]string // until the transaction ends
}

// set gives the settings with one more. A SET of the session wins over a SET
// LOCAL before it, as in PostgreSQL.
func (s wireSettings) set(name, value string, local bool) wireSettings {
	if local {
		s.local = withEntry(s.local, name, value)
		return s
	}
	s.session = withEntry(s.session, name, value)
	return s.without(name)
}

func withEntry(m map[string]string, name, value string) map[string]string {
	m = maps.Clone(m)
	if m == nil {
		m = map[string]string{}
	}
	m[name] = value
	return m
}

// without forgets what SET LOCAL said of a name.
func (s wireSettings) without(name string) wireSettings {
	if _, ok := s.local[name]; ok {
		s.local = maps.Clone(s.local)
		delete(s.local, name)
	}
	return s
}

// approval is the one that gate.approval_id names for the next statement that needs
// one, or "".
func (w *Wire) approval() string { return w.show(settingApproval) }

// forgetApproval takes the approval that served out of the settings, and out of those
// that a rollback would bring back.
func (w *Wire) forgetApproval() {
	id, u := w.approval(), &w.unit
	w.settings = w.settings.withoutApproval(id)
	u.before = u.before.withoutApproval(id)
	for i := range u.savepoints {
		u.savepoints[i].settings = u.savepoints[i].settings.withoutApproval(id)
	}
}

func (s wireSettings) withoutApproval(id string) wireSettings {
	for _, m := range []*map[string]string{&s.session, &s.local} {
		if (*m)[settingApproval] == id {
			*m = withEntry(*m, settingApproval, "")
		}
	}
	return s
}

// A wireSetting is one name of the closed list that a connection may set
// (design/execution-and-wire.md part 9).
type wireSetting struct {
	label    string // as PostgreSQL writes the name
	told     bool   // reported by ParameterStatus
	standard func(w *Wire) string
	// take turns a value into what SHOW says, or refuses it.
	take func(w *Wire, ctx context.Context, value string) (string, error)
}

// Names that are settled by more than their value.
const (
	settingApproval     = "gate.approval_id"
	settingApprovalWait = "gate.approval_wait_ms"
	settingReason       = "gate.reason"
	settingIsolation    = "default_transaction_isolation"
	settingReadOnly     = "default_transaction_read_only"
	settingDeferrable   = "default_transaction_deferrable"
	settingStatement    = "statement_timeout"
	settingLock         = "lock_timeout"
	settingTimeZone     = "timezone"
	settingApplication  = "application_name"
	settingNowReadOnly  = "transaction_read_only"
	settingNowLevel     = "transaction_isolation"
	settingNowDefers    = "transaction_deferrable"
)

var wireSettingTable = map[string]wireSetting{
	settingApplication:            {settingApplication, true, is(""), takeApplication},
	"client_encoding":             {"client_encoding", true, is("UTF8"), takeEncoding},
	"datestyle":                   {"DateStyle", true, is("ISO, MDY"), takeDateStyle},
	settingTimeZone:               {"TimeZone", true, is("UTC"), takeTimeZone},
	"standard_conforming_strings": {"standard_conforming_strings", true, is("on"), takeOn},
	"extra_float_digits":          {"extra_float_digits", false, is("1"), takeFloatDigits},
	"search_path":                 {"search_path", false, (*Wire).searchPath, takeSearchPath},
	settingStatement:              {settingStatement, false, func(w *Wire) string { return showMillis(w.gate.QueryTimeout) }, takeStatementTimeout},
	settingLock:                   {settingLock, false, func(w *Wire) string { return showMillis(w.gate.Wire.LockTimeout) }, takeLockTimeout},
	settingReadOnly:               {settingReadOnly, true, is("off"), takeBool},
	settingDeferrable:             {settingDeferrable, false, is("off"), takeBool},
	settingIsolation:              {settingIsolation, false, is("read committed"), takeIsolation},
	settingApproval:               {settingApproval, false, is(""), takeApproval},
	settingApprovalWait:           {settingApprovalWait, false, is("0"), takeApprovalWait},
	settingReason:                 {settingReason, false, is(""), takeReason},
}

func is(value string) func(*Wire) string { return func(*Wire) string { return value } }

func (w *Wire) searchPath() string {
	return `"` + strings.ReplaceAll(w.gate.Wire.SearchPath, `"`, `""`) + `", pg_temp`
}

// show is the value of a name of the list now.
func (w *Wire) show(name string) string {
	if v, ok := w.settings.local[name]; ok {
		return v
	}
	if v, ok := w.settings.session[name]; ok {
		return v
	}
	return w.initial(name)
}

// initial is the value that RESET goes back to: that of the startup, or ours.
func (w *Wire) initial(name string) string {
	if v, ok := w.started[name]; ok {
		return v
	}
	setting := wireSettingTable[name]
	return setting.standard(w)
}

// begin takes the startup parameters. All of them are of the list, or the
// connection is refused: none is dropped in silence.
func (w *Wire) begin() error {
	w.started = map[string]string{}
	for _, p := range w.login.Settings {
		name := strings.ToLower(p[0])
		setting, ok := wireSettingTable[name]
		if !ok {
			return wireErrorf("0A000", "not available through the gate: the startup parameter %s", p[0])
		}
		value, err := setting.take(w, context.Background(), p[1])
		if err != nil {
			return err
		}
		if name == settingApproval {
			w.settings = w.settings.set(name, value, false) // RESET does not go back to it: it serves once
			continue
		}
		w.started[name] = value
	}
	w.Changed()
	return nil
}

// Parameters are what ParameterStatus says of the connection's settings.
func (w *Wire) Parameters() [][2]string {
	var list [][2]string
	for _, name := range toldSettings {
		list = append(list, [2]string{wireSettingTable[name].label, w.show(name)})
	}
	return list
}

var toldSettings = func() (names []string) {
	for name, s := range wireSettingTable {
		if s.told {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}()

// Changed are the settings whose value the client has not been told. It is asked
// before each ReadyForQuery: what holds then is what a client goes by.
func (w *Wire) Changed() (list [][2]string) {
	if w.reported == nil {
		w.reported = map[string]string{}
	}
	for _, p := range w.Parameters() {
		if known, ok := w.reported[p[0]]; !ok || known != p[1] {
			w.reported[p[0]] = p[1]
			list = append(list, p)
		}
	}
	return list
}

// timeout is the shorter of a statement's time and what the connection set.
func (w *Wire) timeout(most time.Duration) time.Duration {
	if ms, ok := parseMillis(w.show(settingStatement)); ok && ms > 0 && ms < most {
		return ms
	}
	return most
}

// zone is the time zone of the next statement, "" where it is UTC, as pinned.
func (w *Wire) zone() string {
	if zone := w.show(settingTimeZone); zone != "UTC" {
		return zone
	}
	return ""
}

// toDatabase are the settings that a statement takes along.
func (w *Wire) toDatabase() pgexec.Settings {
	var s pgexec.Settings
	put := func(name, value string) {
		if s == nil {
			s = pgexec.Settings{}
		}
		s[name] = value
	}
	if zone := w.zone(); zone != "" {
		put("TimeZone", zone)
	}
	if ms, ok := parseMillis(w.show(settingLock)); ok && ms < w.gate.Wire.LockTimeout {
		put("lock_timeout", strconv.FormatInt(ms.Milliseconds(), 10))
	}
	return s
}

// invalid is what PostgreSQL says to a value that it does not take.
func invalid(name, value string) error {
	return wireErrorf("22023", "invalid value for parameter \"%s\": \"%s\"", name, value)
}

// fixed refuses a value of a setting that the gate pins.
func fixed(name, value string) error {
	e := wireErrorf("0A000", "not available through the gate: %s is %s", name, value)
	e.Hint = "Leave it as it is; the gate judges statements under this value."
	return e
}

// takeApplication keeps printable ASCII, as PostgreSQL does, and the bytes of a name.
func takeApplication(_ *Wire, _ context.Context, value string) (string, error) {
	clean := []byte(value)
	for i, c := range clean {
		if c < 32 || c > 126 {
			clean[i] = '?'
		}
	}
	return string(clean[:min(len(clean), wireNameBytes)]), nil
}

func takeEncoding(_ *Wire, _ context.Context, value string) (string, error) {
	name := strings.Map(func(c rune) rune {
		if c >= 'a' && c <= 'z' || c >= '0' && c <= '9' {
			return c
		}
		return -1
	}, strings.ToLower(value))
	if name != "utf8" && name != "unicode" {
		return "", fixed("client_encoding", "UTF8")
	}
	return "UTF8", nil
}

func takeDateStyle(_ *Wire, _ context.Context, value string) (string, error) {
	switch strings.ToLower(strings.ReplaceAll(value, " ", "")) {
	case "iso", "iso,mdy", "mdy,iso":
		return "ISO, MDY", nil
	}
	return "", fixed("DateStyle", "ISO, MDY")
}

func takeOn(_ *Wire, _ context.Context, value string) (string, error) {
	if on, ok := parseBool(value); !ok || !on {
		return "", fixed("standard_conforming_strings", "on")
	}
	return "on", nil
}

func takeFloatDigits(_ *Wire, _ context.Context, value string) (string, error) {
	n, err := strconv.Atoi(value)
	if err != nil || n < 1 || n > 3 {
		return "", fixed("extra_float_digits", "1, 2 or 3, which mean the same")
	}
	return strconv.Itoa(n), nil
}

func takeSearchPath(w *Wire, _ context.Context, value string) (string, error) {
	ours := w.gate.Wire.SearchPath
	names := strings.Split(value, ",")
	for i, n := range names {
		n = strings.TrimSpace(n)
		if unquoted, ok := strings.CutPrefix(n, `"`); ok && strings.HasSuffix(unquoted, `"`) && len(unquoted) > 1 {
			n = strings.ReplaceAll(strings.TrimSuffix(unquoted, `"`), `""`, `"`)
		}
		names[i] = n
	}
	if !slices.Equal(names, []string{ours}) && !slices.Equal(names, []string{ours, "pg_temp"}) {
		return "", fixed("search_path", w.searchPath())
	}
	return w.searchPath(), nil
}

// takeTimeZone asks the database, which alone knows its time zones.
func takeTimeZone(w *Wire, ctx context.Context, value string) (string, error) {
	if strings.EqualFold(value, "UTC") {
		return "UTC", nil
	}
	if err := w.flushAhead(ctx); err != nil { // the value reaches the server: its evidence first
		return "", err
	}
	if err := w.stands(); err != nil {
		return "", err
	}
	return w.gate.Database.Setting(ctx, "TimeZone", value)
}

func takeStatementTimeout(w *Wire, _ context.Context, value string) (string, error) {
	return takeTimeout(settingStatement, value, w.gate.QueryTimeout)
}

func takeLockTimeout(w *Wire, _ context.Context, value string) (string, error) {
	return takeTimeout(settingLock, value, w.gate.Wire.LockTimeout)
}

func takeTimeout(name, value string, most time.Duration) (string, error) {
	ms, ok := parseMillis(value)
	switch {
	case !ok || ms < 0:
		return "", invalid(name, value)
	case ms == 0 || ms > most:
		e := wireErrorf("22023", "%s is at most %s through the gate", name, showMillis(most))
		e.Hint = "0, which means no limit, is not taken."
		return "", e
	}
	return showMillis(ms), nil
}

func takeBool(_ *Wire, _ context.Context, value string) (string, error) {
	on, ok := parseBool(value)
	if !ok {
		return "", wireErrorf("22023", "a Boolean value was expected, not \"%s\"", value)
	}
	return onOff(on), nil
}

func takeIsolation(_ *Wire, _ context.Context, value string) (string, error) {
	level := strings.ToLower(value)
	if !slices.Contains([]string{"read uncommitted", "read committed", "repeatable read", "serializable"}, level) {
		return "", invalid(settingIsolation, value)
	}
	return level, nil
}

func takeApproval(_ *Wire, _ context.Context, value string) (string, error) {
	if value != "" && !approvalID(value) {
		return "", invalid(settingApproval, value)
	}
	return value, nil
}

func takeApprovalWait(_ *Wire, _ context.Context, value string) (string, error) {
	ms, err := strconv.Atoi(strings.TrimSpace(value))
	if most := LongestApprovalWait.Milliseconds(); err != nil || ms < 0 || int64(ms) > most {
		return "", wireErrorf("22023", "%s is a number of milliseconds from 0, which is not to wait, to %d", settingApprovalWait, most)
	}
	return strconv.Itoa(ms), nil
}

// takeReason is why a statement is sent, which goes into its evidence.
func takeReason(_ *Wire, _ context.Context, value string) (string, error) {
	if problem := reasonProblem(value); value != "" && problem != "" {
		return "", wireErrorf("22023", "%s %s", settingReason, problem)
	}
	return value, nil
}

func onOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}

// parseBool reads a Boolean as PostgreSQL does: any unambiguous beginning of
// true, false, yes, no, on and off, and 1 and 0.
func parseBool(value string) (on, ok bool) {
	value = strings.ToLower(strings.TrimSpace(value))
	switch {
	case value == "":
	case value == "1" || value == "on" || strings.HasPrefix("true", value) || strings.HasPrefix("yes", value):
		return true, true
	case value == "0" || value == "of" || value == "off" || strings.HasPrefix("false", value) || strings.HasPrefix("no", value):
		return false, true
	}
	return false, false
}

var timeUnits = []struct {
	name string
	unit time.Duration
}{{"d", 24 * time.Hour}, {"h", time.Hour}, {"min", time.Minute}, {"s", time.Second}, {"ms", time.Millisecond}, {"us", time.Microsecond}}

// parseMillis reads a time as PostgreSQL does: a number, in milliseconds where it
// has no unit.
func parseMillis(value string) (time.Duration, bool) {
	value = strings.TrimSpace(value)
	digits := strings.TrimRight(value, "abcdefghijklmnopqrstuvwxyz ")
	unit := time.Millisecond
	if name := strings.TrimSpace(value[len(digits):]); name != "" {
		unit = 0
		for _, u := range timeUnits {
			if u.name == name {
				unit = u.unit
			}
		}
	}
	n, err := strconv.ParseFloat(digits, 64)
	if err != nil || unit == 0 || n < 0 || n*float64(unit) > float64(365*24*time.Hour) {
		return 0, false
	}
	return time.Duration(n * float64(unit)).Round(time.Millisecond), true
}

// showMillis writes a time as SHOW does: in the largest unit that it is whole in.
func showMillis(d time.Duration) string {
	if d <= 0 {
		return "0"
	}
	for _, u := range timeUnits {
		if d >= u.unit && d%u.unit == 0 {
			return strconv.FormatInt(int64(d/u.unit), 10) + u.name
		}
	}
	return "0"
}
