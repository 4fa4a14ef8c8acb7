package controlplane

import (
	"net"
	"net/http"
	"net/netip"
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

// guard puts the same headers on every answer, and refuses a Host that is not
// ours, so that a name of somebody else's that leads here (DNS rebinding) shows
// nothing.
func (s *Server) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", policyHeader)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("X-Frame-Options", "DENY")
		h.Set("Referrer-Policy", "same-origin") // under no-referrer a form of ours would come with the Origin null
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Permissions-Policy", "camera=(), geolocation=(), microphone=(), payment=(), usb=()")
		h.Set("Cache-Control", "no-store")
		if s.options.Secure {
			h.Set("Strict-Transport-Security", "max-age=31536000")
		}
		if !s.ourHost(r.Host) {
			http.Error(w, "This name is not the control plane's. Use its public address (CONTROL_PLANE_PUBLIC_URL).", http.StatusMisdirectedRequest)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// ourHost reports whether a Host header names this control plane. Without a
// public address every IP address is it, and localhost: no name can be made to
// mean one of them.
func (s *Server) ourHost(host string) bool {
	if public := s.options.PublicURL; public != nil {
		return strings.EqualFold(host, public.Host)
	}
	name := host
	if bare, _, err := net.SplitHostPort(host); err == nil {
		name = bare
	}
	if strings.EqualFold(name, "localhost") {
		return true
	}
	_, err := netip.ParseAddr(strings.Trim(name, "[]"))
	return err == nil
}

// ownOrigin is the origin of our own pages (RFC 6454), as this request sees it.
func (s *Server) ownOrigin(r *http.Request) string {
	if public := s.options.PublicURL; public != nil {
		return public.Scheme + "://" + public.Host
	}
	if s.options.Secure {
		return "https://" + r.Host
	}
	return "http://" + r.Host
}

// sameOrigin demands that a mutation comes from our own page: its Origin, or
// where a browser leaves that out, its own word that the page is of this origin
// (https://www.w3.org/TR/fetch-metadata/).
func (s *Server) sameOrigin(r *http.Request) error {
	origin := r.Header.Get("Origin")
	if origin == s.ownOrigin(r) || (origin == "" && r.Header.Get("Sec-Fetch-Site") == "same-origin") {
		return nil
	}
	return fault.New(fault.ForgedRequest, "This request does not come from a page of the control plane, so nothing was done. Open the page itself and do it there.")
}

// signedIn gives the session of a call.
func (s *Server) signedIn(c *httpd.Call) (session, error) {
	one, ok := s.sessions.find(s.secretOf(c.Request), c.Request.Header.Get(backgroundHeader) == "")
	if !ok {
		return session{}, fault.New(fault.LoginRequired, "There is no session, or it is over. Log in.")
	}
	return one, nil
}

// mayChange is signedIn for what changes something: the page's own origin and
// the session's token must be there too.
func (s *Server) mayChange(c *httpd.Call, token string) (session, error) {
	one, err := s.signedIn(c)
	if err != nil {
		return session{}, err
	}
	if err := s.sameOrigin(c.Request); err != nil {
		return session{}, err
	}
	if !one.rightToken(token) {
		return session{}, fault.New(fault.ForgedRequest, "The request does not carry this session's token, so nothing was done. Reload the page and do it again.")
	}
	return one, nil
}
