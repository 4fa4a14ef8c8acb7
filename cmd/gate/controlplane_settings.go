package main

import (
	"fmt"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/agnivade/levenshtein"
	"github.com/caarlos0/env/v11"

	"writegate/http/controlplane"
	"writegate/http/httpd"
)

// controlPlaneSettings is every setting of `gate control-plane`
// (spec/decisions.md part 9), with tags as in settings.
type controlPlaneSettings struct {
	ListenAddr   string `env:"CONTROL_PLANE_LISTEN_ADDR" envDefault:"127.0.0.1:3000" doc:"address of the dashboard"`
	Mode         string `env:"CONTROL_PLANE_MODE" envDefault:"real" oneof:"real,mock" doc:"mock invents everything, and says so on every page"`
	Profile      string `env:"CONTROL_PLANE_PROFILE" envDefault:"development" oneof:"development,production" doc:"production refuses to start without HTTPS, credentials and a public address"`
	PublicURL    string `env:"CONTROL_PLANE_PUBLIC_URL" empty:"refused" doc:"address that browsers use, such as https://gate.example; pages are shown under no other name"`
	AdminUser    string `env:"CONTROL_PLANE_ADMIN_USER" doc:"name of the person who may log in"`
	PasswordHash string `env:"CONTROL_PLANE_ADMIN_PASSWORD_HASH" secret:"true" doc:"argon2id or bcrypt; gate control-plane hash-password makes one"`

	LogFormat      string `env:"GATE_LOG_FORMAT" envDefault:"auto" oneof:"auto,json,text" doc:"lines on standard error: auto is text for people on a terminal, and json elsewhere"`
	BackendURL     string `env:"GATE_BACKEND_URL" doc:"address of the gate"`
	OperatorToken  string `env:"GATE_OPERATOR_TOKEN" secret:"true" doc:"the gate's operator token; without it the pages only show"`
	ProjectKey     string `env:"CONTROL_PLANE_PROJECT_KEY" secret:"true" doc:"project key that opens /v1 for the Agents pages; one of the dashboard's own"`
	BackendCA      string `env:"CONTROL_PLANE_BACKEND_CA_BUNDLE_PATH" empty:"refused" doc:"PEM file of the CAs that sign the gate's certificate; default the host's"`
	BackendCert    string `env:"CONTROL_PLANE_BACKEND_CERT_PATH" empty:"refused" doc:"PEM file of a client certificate for the gate"`
	BackendKey     string `env:"CONTROL_PLANE_BACKEND_KEY_PATH" empty:"refused" doc:"PEM file of its key"`
	TLSCert        string `env:"CONTROL_PLANE_TLS_CERT_PATH" empty:"refused" doc:"PEM file of the dashboard's own certificate and its chain"`
	TLSKey         string `env:"CONTROL_PLANE_TLS_KEY_PATH" empty:"refused" doc:"PEM file of its key"`
	BehindTLSProxy bool   `env:"CONTROL_PLANE_BEHIND_TLS_PROXY" envDefault:"false" doc:"a proxy in front ends TLS: cookies are bound to HTTPS all the same"`
	TrustedProxies string `env:"CONTROL_PLANE_TRUSTED_PROXIES" doc:"CIDRs, separated by commas, of proxies whose X-Forwarded-For names the browser's address"`
}

// loadControlPlane reads them; the error lists every fault at once.
func loadControlPlane(environ []string) (*controlPlaneSettings, error) {
	environ, faults := withSecretFiles(environ)
	values := env.ToMap(environ)
	s := new(controlPlaneSettings)
	faults = append(append(faults, unknownNames(values)...), s.unknownNames(values)...)
	faults = append(faults, parseInto(s, values)...)
	faults = append(append(faults, rangeFaults(s)...), s.meaningFaults()...)
	faults = append(faults, emptyFaults(s, values)...)
	if len(faults) > 0 {
		return nil, faultList("the settings of the control plane", faults)
	}
	return s, nil
}

func (s *controlPlaneSettings) unknownNames(values map[string]string) []string {
	known := namesOf(reflect.TypeFor[controlPlaneSettings]())
	var faults []string
	for name := range values {
		if !strings.HasPrefix(name, "CONTROL_PLANE_") || slices.Contains(known, name) {
			continue
		}
		nearest := slices.MinFunc(known, func(a, b string) int {
			return levenshtein.ComputeDistance(name, a) - levenshtein.ComputeDistance(name, b)
		})
		faults = append(faults, fmt.Sprintf("%s is not a setting of the control plane. Did you mean %s?", name, nearest))
	}
	slices.Sort(faults)
	return faults
}

func (s *controlPlaneSettings) meaningFaults() []string {
	var faults []string
	for _, rule := range []struct {
		broken bool
		fault  string
	}{
		{s.AdminUser == "", "CONTROL_PLANE_ADMIN_USER must name the person who may log in"},
		{s.PasswordHash == "", "CONTROL_PLANE_ADMIN_PASSWORD_HASH must be set; gate control-plane hash-password makes one"},
		{s.Mode == "real" && s.BackendURL == "", "GATE_BACKEND_URL must be the address of the gate, such as http://127.0.0.1:6543"},
		{(s.TLSCert == "") != (s.TLSKey == ""), "CONTROL_PLANE_TLS_CERT_PATH and CONTROL_PLANE_TLS_KEY_PATH go together: set both or none"},
		{(s.BackendCert == "") != (s.BackendKey == ""), "CONTROL_PLANE_BACKEND_CERT_PATH and CONTROL_PLANE_BACKEND_KEY_PATH go together: set both or none"},
		{s.TLSCert != "" && s.BehindTLSProxy, "CONTROL_PLANE_BEHIND_TLS_PROXY is for a listener without a certificate of its own"},
		{s.production() && !s.secure(), "CONTROL_PLANE_TLS_CERT_PATH and CONTROL_PLANE_TLS_KEY_PATH must be set in production, or CONTROL_PLANE_BEHIND_TLS_PROXY where a proxy ends TLS"},
		{s.production() && s.PublicURL == "", "CONTROL_PLANE_PUBLIC_URL must be set in production"},
		{s.production() && s.Mode == "mock", "CONTROL_PLANE_MODE must be real in production"},
		{s.production() && strings.HasPrefix(s.BackendURL, "http://"), "GATE_BACKEND_URL must begin with https:// in production: the operator token goes there"},
	} {
		if rule.broken {
			faults = append(faults, rule.fault)
		}
	}
	if _, err := s.publicURL(); err != nil {
		faults = append(faults, err.Error())
	}
	if _, err := httpd.ParseProxies(s.TrustedProxies); err != nil {
		faults = append(faults, "CONTROL_PLANE_TRUSTED_PROXIES: "+err.Error())
	}
	if s.PasswordHash != "" {
		if _, err := controlplane.ParsePasswordHash(s.PasswordHash); err != nil {
			faults = append(faults, "CONTROL_PLANE_ADMIN_PASSWORD_HASH: "+err.Error())
		}
	}
	return faults
}

func (s *controlPlaneSettings) production() bool { return s.Profile == profileProduction }

// secure reports whether browsers come by HTTPS.
func (s *controlPlaneSettings) secure() bool { return s.TLSCert != "" || s.BehindTLSProxy }

// publicURL is nil where none is set.
func (s *controlPlaneSettings) publicURL() (*url.URL, error) {
	if s.PublicURL == "" {
		return nil, nil
	}
	u, err := url.Parse(s.PublicURL)
	if err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.User != nil {
		return nil, fmt.Errorf("CONTROL_PLANE_PUBLIC_URL must be an origin such as https://gate.example, without a path")
	}
	if s.secure() != (u.Scheme == "https") {
		return nil, fmt.Errorf("CONTROL_PLANE_PUBLIC_URL must begin with %s, since browsers reach the listener that way", map[bool]string{true: "https://", false: "http://"}[s.secure()])
	}
	return u, nil
}

// options makes what the package needs of the settings.
func (s *controlPlaneSettings) options(now func() time.Time) (controlplane.Options, error) {
	o := controlplane.Options{Secure: s.secure(), Version: version}
	var err error
	if o.PublicURL, err = s.publicURL(); err != nil {
		return o, err
	}
	if o.Proxies, err = httpd.ParseProxies(s.TrustedProxies); err != nil {
		return o, err
	}
	o.Users.Name = s.AdminUser
	if o.Users.Hash, err = controlplane.ParsePasswordHash(s.PasswordHash); err != nil || s.Mode == "mock" {
		return o, err
	}
	files := controlplane.BackendFiles{CAPath: s.BackendCA, CertPath: s.BackendCert, KeyPath: s.BackendKey}
	o.Backend, err = controlplane.NewBackend(s.BackendURL, files, s.OperatorToken, s.ProjectKey, now)
	return o, err
}
