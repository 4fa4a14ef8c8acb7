package toolcheck

import (
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"writegate/agentctl/egress"
)

// SecretPrefix begins the variables that secrets are read from.
const SecretPrefix = "GATE_TOOL_SECRET_"

const hostSuffix = "_HOST"

var secretName = regexp.MustCompile(`^[A-Z0-9_]{1,48}$`)

// ValidSecretName reports whether name can be the name of a secret. A name that
// ends in _HOST would be the host of another one.
func ValidSecretName(name string) bool {
	return secretName.MatchString(name) && !strings.HasSuffix(name, hostSuffix)
}

// Secrets are the values that tools are authenticated with, by name. They come
// from the environment and are never told: not to clients, not to the log.
type Secrets struct {
	byName map[string]secret
}

type secret struct{ value, host, port string }

// ParseSecrets reads GATE_TOOL_SECRET_<NAME> and GATE_TOOL_SECRET_<NAME>_HOST
// from an environment (os.Environ). The host, optionally with a port, is the only
// one that the value is ever sent to; without a port it is meant on each port
// that the operator opened. A secret without a host, or a host without a secret,
// is refused: neither would ever be used.
func ParseSecrets(environ []string) (Secrets, error) {
	values, hosts := map[string]string{}, map[string]string{}
	for _, entry := range environ {
		variable, value, _ := strings.Cut(entry, "=")
		name, ours := strings.CutPrefix(variable, SecretPrefix)
		if !ours {
			continue
		}
		kept := values
		if of, isHost := strings.CutSuffix(name, hostSuffix); isHost {
			name, kept = of, hosts
		}
		if !ValidSecretName(name) {
			return Secrets{}, fmt.Errorf("%s: a secret's name is 1 to 48 of A to Z, 0 to 9 and _", variable)
		}
		kept[name] = value
	}
	s := Secrets{byName: map[string]secret{}}
	for name, value := range values {
		one, err := parseSecret(value, hosts[name])
		if err != nil {
			return Secrets{}, fmt.Errorf("%s%s: %w", SecretPrefix, name, err)
		}
		s.byName[name] = one
		delete(hosts, name)
	}
	for name := range hosts {
		return Secrets{}, fmt.Errorf("%s%s%s: there is no %s%s", SecretPrefix, name, hostSuffix, SecretPrefix, name)
	}
	return s, nil
}

func parseSecret(value, host string) (secret, error) {
	if value == "" || strings.ContainsFunc(value, func(r rune) bool { return r < ' ' || r > '~' }) {
		return secret{}, fmt.Errorf("the value is empty or has characters that no header can carry")
	}
	if host == "" {
		return secret{}, fmt.Errorf("the variable with %s behind it has to name the one host that may see it", hostSuffix)
	}
	u, err := url.Parse("https://" + host)
	if err != nil || u.Host != host || u.Hostname() == "" {
		return secret{}, fmt.Errorf("%q is no host: write it like mcp.example.com or mcp.example.com:8443", host)
	}
	return secret{value: value, host: strings.ToLower(u.Hostname()), port: u.Port()}, nil
}

// Names are the names of all secrets, in order.
func (s Secrets) Names() []string {
	var names []string
	for name := range s.byName {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// credential is the header that auth means for target. The refusal does not tell
// a secret that does not exist from one that belongs to another host: who may
// register tools need not know which secrets there are.
func (s Secrets) credential(auth Auth, target *url.URL) (egress.Credential, *egress.Refusal) {
	if auth.Type == "" || auth.Type == AuthNone {
		return egress.Credential{}, nil
	}
	one, known := s.byName[auth.Secret]
	if !known || !one.belongsTo(target) {
		why := fmt.Sprintf("The gate has no secret of this name for this host. Its operator sets %s%s and %s%s%s.", SecretPrefix, auth.Secret, SecretPrefix, auth.Secret, hostSuffix)
		return egress.Credential{}, &egress.Refusal{Code: SecretUnavailable, Why: why}
	}
	if auth.Type == AuthBearer {
		return egress.Credential{Header: "Authorization", Value: "Bearer " + one.value}, nil
	}
	return egress.Credential{Header: auth.Header, Value: one.value}, nil
}

func (s secret) belongsTo(target *url.URL) bool {
	port := target.Port()
	if port == "" {
		port = map[string]string{"https": "443", "http": "80"}[target.Scheme]
	}
	return strings.EqualFold(target.Hostname(), s.host) && (s.port == "" || s.port == port)
}

// String keeps the values out of whatever is printed.
func (s Secrets) String() string { return fmt.Sprintf("%d secrets", len(s.byName)) }

// GoString does the same for %#v.
func (s Secrets) GoString() string { return s.String() }
