package pgwire

import (
	"cmp"
	"slices"
	"strings"
	"unicode/utf8"

	"writegate/sqlgate"
)

// maxClaim is the longest claim, in characters (spec/decisions.md part 3).
const maxClaim = 256

// appWithout is the claim app of a client that names no application.
const appWithout = "pgwire"

// An introduction is who a client says it is: the parameters of its greeting,
// sorted by what they are for.
type introduction struct {
	user, database string
	replication    string
	claims         map[string]string // actor, app, tenant, role, env as given by gate.*
	settings       [][2]string       // names in lower case; the Wire judges them
}

// claimNames are the parameters that are claims. They stay for the connection.
var claimNames = []string{"actor", "app", "tenant", "role", "env"}

// introduce reads a greeting. As with PostgreSQL, options come first and a
// parameter of its own wins over them; of two settings of one name the later one
// counts. Who asks, and for what, is said once.
func introduce(g *greeting) (*introduction, error) {
	in := &introduction{claims: map[string]string{}}
	var named [][2]string
	seen := map[string]bool{}
	for _, p := range g.parameters {
		switch p[0] {
		case "user", "database", "replication", "options":
			if seen[p[0]] {
				return nil, saidTwice(p[0])
			}
			seen[p[0]] = true
		}
		switch p[0] {
		case "user":
			in.user = p[1]
		case "database":
			in.database = p[1]
		case "replication":
			in.replication = p[1]
		case "options":
			settings, err := parseOptions(p[1])
			if err != nil {
				return nil, err
			}
			if err := in.take(settings); err != nil {
				return nil, err
			}
		default:
			named = append(named, p)
		}
	}
	if err := in.take(named); err != nil {
		return nil, err
	}
	if in.user == "" {
		return nil, fatalf("28000", "no PostgreSQL user name specified in startup packet")
	}
	in.database = cmp.Or(in.database, in.user)
	return in, in.check()
}

// take sorts settings into claims and what the session keeps; a later one of a
// name takes the place of an earlier one. What identifies a client, and an
// approval, does not: of two, the client believes in the one that does not count.
func (in *introduction) take(settings [][2]string) error {
	application := false
	for _, s := range settings {
		name := asciiLower(s[0])
		if claim, ok := strings.CutPrefix(name, "gate."); ok && slices.Contains(claimNames, claim) {
			if _, said := in.claims[claim]; said {
				return saidTwice(name)
			}
			in.claims[claim] = s[1]
			continue
		}
		before := len(in.settings)
		in.settings = slices.DeleteFunc(in.settings, func(have [2]string) bool { return have[0] == name })
		if len(in.settings) < before && (strings.HasPrefix(name, "gate.") || application && name == "application_name") {
			return saidTwice(name)
		}
		application = application || name == "application_name"
		in.settings = append(in.settings, [2]string{name, s[1]})
	}
	return nil
}

func saidTwice(name string) error {
	return fatalf("22023", "the startup parameter %s is there twice: give it once, as a parameter of its own or in options", name)
}

// check refuses what can be refused from the greeting alone.
func (in *introduction) check() error {
	for _, p := range [][2]string{{"user", in.user}, {"database", in.database}, {"application_name", cmp.Or(in.application(), appWithout)}} {
		if !goodClaim(p[1]) {
			return fatalf("22023", "the startup parameter %s must be 1 to %d characters of valid UTF-8 without control characters", p[0], maxClaim)
		}
	}
	for _, name := range claimNames {
		if value, ok := in.claims[name]; ok && !goodClaim(value) {
			return fatalf("22023", "gate.%s must be 1 to %d characters of valid UTF-8 without control characters", name, maxClaim)
		}
	}
	if env, ok := in.claims["env"]; ok && env != "shadow" && env != "staging" && env != "prod" {
		return fatalf("22023", "gate.env must be shadow, staging or prod")
	}
	switch in.replication {
	case "", "false", "off", "no", "0":
		return nil
	}
	return notThroughTheGate("replication", "Connect to the database itself.")
}

func goodClaim(value string) bool {
	return value != "" && utf8.ValidString(value) && utf8.RuneCountInString(value) <= maxClaim &&
		!strings.ContainsFunc(value, func(c rune) bool { return c < ' ' || c == 0x7f })
}

// application is application_name as the client gave it, "" where it did not.
func (in *introduction) application() string {
	for _, s := range in.settings {
		if s[0] == "application_name" {
			return s[1]
		}
	}
	return ""
}

// sqlClaims are the claims of every statement of the connection.
func (in *introduction) sqlClaims(host, env string) sqlgate.Claims {
	return sqlgate.Claims{
		Actor:  cmp.Or(in.claims["actor"], in.user),
		App:    cmp.Or(in.claims["app"], in.application(), appWithout),
		Tenant: cmp.Or(in.claims["tenant"], in.database),
		Role:   cmp.Or(in.claims["role"], in.user),
		Host:   host,
		Env:    cmp.Or(in.claims["env"], env),
	}
}

// asciiLower folds as PostgreSQL folds the names of settings: ASCII alone.
func asciiLower(s string) string {
	if !strings.ContainsFunc(s, func(c rune) bool { return c >= 'A' && c <= 'Z' }) {
		return s
	}
	b := []byte(s)
	for i, c := range b {
		if c >= 'A' && c <= 'Z' {
			b[i] = c + 'a' - 'A'
		}
	}
	return string(b)
}
