package controlplane

import (
	"context"
	"crypto/subtle"
	"math"
	"net/http"
	"net/url"
	"strings"
	"time"

	"writegate/commands/fault"
	"writegate/http/httpd"
)

type loginRequest struct {
	Username string `json:"username"`
	Password string `json:"password"`
}

type loginAnswer struct {
	Username  string    `json:"username"`
	CSRFToken string    `json:"csrf_token"`
	ExpiresAt time.Time `json:"expires_at"`
	Mock      bool      `json:"mock,omitempty"`
}

// Bounds on what somebody sends who is not logged in, and on what of it is shown to
// him again, in bytes.
const (
	maxLogin = 64 << 10
	maxNext  = 4 << 10
	maxName  = 200
)

// login is POST /api/gate/admin/login (spec/decisions.md part 9).
func (s *Server) login(c *httpd.Call) error {
	var req loginRequest
	if err := ownPage(c); err != nil {
		return err
	}
	c.LimitBody(maxLogin)
	if err := c.Decode(&req); err != nil {
		return err
	}
	one, err := s.enter(c, req)
	if err != nil {
		return err
	}
	c.JSON(http.StatusOK, loginAnswer{Username: one.user, CSRFToken: one.csrf, ExpiresAt: one.ends().UTC(), Mock: s.mock()})
	return nil
}

// enter judges a login and begins its session. The session that the browser
// had ends: nobody is handed one that somebody else knows.
func (s *Server) enter(c *httpd.Call, req loginRequest) (session, error) {
	if wait, ok := s.logins.Allow(c.Holder()); !ok {
		seconds := max(1, int(math.Ceil(wait.Seconds())))
		return session{}, fault.New(fault.RateLimitExceeded, "Too many logins from this address. Wait %d s.", seconds).With("retry_after_seconds", seconds)
	}
	if !s.isUser(c.Request.Context(), req) {
		s.log.Warn("a login was refused", "source", logSource, "client", c.Client(), "request_id", c.RequestID)
		return session{}, fault.New(fault.LoginFailed, "The name or the password is wrong.")
	}
	s.sessions.close(s.secretOf(c.Request))
	secret, one := s.sessions.open(req.Username)
	http.SetCookie(c.Writer(), s.cookie(secret, sessionLife))
	s.log.Info("somebody logged in", "source", logSource, "client", c.Client(), "request_id", c.RequestID)
	return one, nil
}

// isUser takes the same time for a wrong name as for a wrong password. Two
// hashes at once are the most: each costs tens of megabytes.
func (s *Server) isUser(ctx context.Context, req loginRequest) bool {
	select {
	case s.hashing <- struct{}{}:
		defer func() { <-s.hashing }()
	case <-ctx.Done():
		return false
	}
	right := s.options.Users.Hash.matches(req.Password)
	known := subtle.ConstantTimeCompare([]byte(req.Username), []byte(s.options.Users.Name)) == 1
	return right && known
}

// logout is POST /api/gate/admin/logout.
func (s *Server) logout(c *httpd.Call) error {
	if _, err := s.mayChange(c, c.Request.Header.Get(csrfHeader)); err != nil {
		return err
	}
	s.leave(c)
	c.JSON(http.StatusOK, map[string]any{"logged_out": true})
	return nil
}

func (s *Server) leave(c *httpd.Call) {
	s.sessions.close(s.secretOf(c.Request))
	http.SetCookie(c.Writer(), s.cookie("", -time.Second))
}

// loginView is what the login page shows.
type loginView struct {
	Next    string
	Name    string
	Problem string
}

// loginPage shows the form; loginForm takes it, so that it works without scripts.
func (s *Server) loginPage(c *httpd.Call) error {
	if _, err := s.signedIn(c); err == nil {
		return redirect(c, "/")
	}
	return s.show(c, http.StatusOK, "login", &page{Title: "Log in", Body: loginView{Next: inside(c.Request.URL.Query().Get("next"))}})
}

func (s *Server) loginForm(c *httpd.Call) error {
	if err := ownPage(c); err != nil {
		return s.loginProblem(c, err, "/", "")
	}
	c.LimitBody(maxLogin)
	form, err := readForm(c)
	if err != nil {
		return err
	}
	next := inside(form.Get("next"))
	if _, err := s.enter(c, loginRequest{form.Get("username"), form.Get("password")}); err != nil {
		return s.loginProblem(c, err, next, form.Get("username"))
	}
	return redirect(c, next)
}

// loginProblem shows the form again. What is written into it is a stranger's.
func (s *Server) loginProblem(c *httpd.Call, err error, next, name string) error {
	f := fault.Of(err)
	if len(next) > maxNext {
		next = "/"
	}
	return s.show(c, httpd.Status(f.Code), "login", &page{Title: "Log in", Body: loginView{Next: next, Name: cutRunes(name, maxName), Problem: f.Message}})
}

func (s *Server) logoutForm(c *httpd.Call) error {
	if _, _, err := s.signedForm(c); err != nil {
		return err
	}
	s.leave(c)
	return redirect(c, "/login")
}

// timesForm is the switch between the browser's zone and UTC.
func (s *Server) timesForm(c *httpd.Call) error {
	_, form, err := s.signedForm(c)
	if err != nil {
		return s.refusedForm(c, err)
	}
	s.sessions.turnTimes(s.secretOf(c.Request))
	return redirect(c, inside(form.Get("next")))
}

// readForm reads an urlencoded form.
func readForm(c *httpd.Call) (url.Values, error) {
	body, err := c.Body("application/x-www-form-urlencoded")
	if err != nil {
		return nil, err
	}
	form, err := url.ParseQuery(string(body))
	if err != nil {
		return nil, fault.New(fault.ValidationFailed, "The form can't be read. Reload the page and send it again.").Because(err)
	}
	return form, nil
}

// inside keeps a redirect on our own pages.
func inside(next string) string {
	if !strings.HasPrefix(next, "/") || strings.HasPrefix(next, "//") || strings.ContainsAny(next, "\\\r\n\t") || strings.HasPrefix(next, "/login") {
		return "/"
	}
	return next
}

func redirect(c *httpd.Call, to string) error {
	c.Writer().Header().Set("Location", to)
	c.Writer().WriteHeader(http.StatusSeeOther)
	return nil
}
