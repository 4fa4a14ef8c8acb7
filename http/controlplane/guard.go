package controlplane

import (
	"net/http"
	"net/url"
	"strings"

	"writegate/commands/fault"
	"writegate/http/httpd"
)

// csrfHeader carries the session's token on what scripts send; forms carry it in
// the field csrf.
const (
	csrfHeader = "X-CSRF-Token"
	csrfField  = "csrf"
)

// backgroundHeader marks what a page does by itself: it keeps no session alive.
const backgroundHeader = "X-Background"

// policyHeader allows what is needed and nothing else: no inline script or
// style, no other host, no frame (https://www.w3.org/TR/CSP3/).
const policyHeader = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"form-action 'self'; frame-ancestors 'none'; base-uri 'none'; require-trusted-types-for 'script'; trusted-types gate"

// headers stand on every answer.
func (s *Server) headers() map[string]string {
	h := map[string]string{
		"Content-Security-Policy":      policyHeader,
		"X-Frame-Options":              "DENY",
		"Referrer-Policy":              "same-origin", // under no-referrer a form of ours would come with the Origin null
		"Cross-Origin-Opener-Policy":   "same-origin",
		"Cross-Origin-Resource-Policy": "same-origin",
		"Permissions-Policy":           "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
		"Cache-Control":                "no-store",
	}
	if s.options.Secure {
		h["Strict-Transport-Security"] = "max-age=31536000"
	}
	return h
}

// ownPage demands that a mutation comes from our own page. A page of another
// origin is refused before it gets here; this refuses whoever says nothing.
func ownPage(c *httpd.Call) error {
	if c.FromOwnPage() {
		return nil
	}
	return fault.New(fault.ForgedRequest, "This request does not come from a page of the control plane, so nothing was done. Open the page itself and do it there.")
}

// byAPerson reports whether somebody clicked. Pictures and streams a browser loads by
// itself, and puts no header of ours on them.
func byAPerson(r *http.Request) bool {
	loaded := r.Method == http.MethodGet && (strings.HasPrefix(r.URL.Path, "/charts/") || strings.HasPrefix(r.URL.Path, apiPrefix))
	return !loaded && r.Header.Get(backgroundHeader) == ""
}

// signedIn gives the session of a call.
func (s *Server) signedIn(c *httpd.Call) (session, error) {
	one, ok := s.sessions.find(s.secretOf(c.Request), byAPerson(c.Request))
	if !ok {
		return session{}, fault.New(fault.LoginRequired, "There is no session, or it is over. Log in.")
	}
	return one, nil
}

// mayChange is signedIn for what changes something: the page's own origin and
// the session's token must be there too.
func (s *Server) mayChange(c *httpd.Call, token string) (session, error) {
	one, err := s.fromPage(c)
	if err != nil {
		return session{}, err
	}
	return one, one.holds(token)
}

// fromPage is what mayChange can tell by the headers alone. What carries the token in
// its body asks it before a byte of that is read.
func (s *Server) fromPage(c *httpd.Call) (session, error) {
	one, err := s.signedIn(c)
	if err != nil {
		return session{}, err
	}
	return one, ownPage(c)
}

// holds refuses a token that is not the session's.
func (s *session) holds(token string) error {
	if s.rightToken(token) {
		return nil
	}
	return fault.New(fault.ForgedRequest, "The request does not carry this session's token, so nothing was done. Reload the page and do it again.")
}

// signedForm reads the form of somebody who is signed in, from a page of ours. The
// session is not to be used beside an error.
func (s *Server) signedForm(c *httpd.Call) (session, url.Values, error) {
	one, err := s.fromPage(c)
	if err != nil {
		return session{}, nil, err
	}
	form, err := readForm(c)
	if err == nil {
		_, err = s.signedIn(c) // the form may have taken its time
	}
	if err != nil {
		return session{}, nil, err
	}
	return one, form, one.holds(form.Get(csrfField))
}
