package controlplane

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"html/template"
	"io/fs"
	"net/http"
	"path"
	"regexp"
	"strings"
	"time"

	"writegate/commands/fault"
	"writegate/http/httpd"
)

// logSource is the source attribute of this package's log entries.
const logSource = "control-plane"

//go:embed pages/*.html
var pageFiles embed.FS

// lineComments are the lines of a script that hold a comment alone; it has no string of several lines.
var lineComments = regexp.MustCompile(`(?m)^[ \t]*//[^\n]*\n`)

//go:embed assets/*
var assetFiles embed.FS

// views are the parsed templates, one a page, and the files that pages refer to.
type views struct {
	pages  map[string]*template.Template
	assets map[string][]byte
	stamp  string // of the assets' content, part of their address
}

func parseViews() (*views, error) {
	v := &views{pages: make(map[string]*template.Template), assets: make(map[string][]byte)}
	if err := v.readAssets(); err != nil {
		return nil, err
	}
	base, err := template.New("").Funcs(v.functions()).ParseFS(pageFiles, "pages/layout.html", "pages/parts.html")
	if err != nil {
		return nil, err
	}
	names, err := fs.Glob(pageFiles, "pages/*.html")
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		clone, err := base.Clone()
		if err != nil {
			return nil, err
		}
		if clone, err = clone.ParseFS(pageFiles, name); err != nil {
			return nil, err
		}
		v.pages[strings.TrimSuffix(path.Base(name), ".html")] = clone
	}
	return v, nil
}

func (v *views) readAssets() error {
	sum := sha256.New()
	return errors.Join(fs.WalkDir(assetFiles, "assets", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := assetFiles.ReadFile(name)
		fmt.Fprintf(sum, "%s %d\n", name, len(content))
		sum.Write(content)
		if path.Ext(name) == ".js" {
			content = lineComments.ReplaceAll(content, nil) // which every page would carry
		}
		v.assets[path.Base(name)] = content
		return err
	}), func() error { v.stamp = hex.EncodeToString(sum.Sum(nil)[:8]); return nil }())
}

// A page is what every template gets.
type page struct {
	Title string
	Nav   string // the entry of the navigation that is marked
	Path  string // of this page, with its query
	User  string
	CSRF  string
	UTC   bool // times in UTC
	Mock  bool
	Gate  *health // nil: out of reach
	Down  string  // why the gate can't be reached, "" where it can
	Now   time.Time

	Waiting int64  // approvals that nobody has decided
	Policy  string // the version that is active; "": not known
	Live    string // event types that make this page look again
	// LiveShown are those that do so for an agent that the page shows.
	LiveShown string
	Body      any
}

// show renders a page.
func (s *Server) show(c *httpd.Call, status int, name string, p *page) error {
	p.Mock, p.Now, p.Path = s.mock(), s.now(), c.Request.URL.RequestURI()
	if p.Body == nil {
		p.Body = struct{}{}
	}
	var out bytes.Buffer
	if err := s.views.pages[name].ExecuteTemplate(&out, "layout", p); err != nil {
		return fmt.Errorf("page %s: %w", name, err)
	}
	c.Writer().Header().Set("Content-Type", "text/html; charset=utf-8")
	c.Writer().WriteHeader(status)
	s.deliver(c, writeOut(out.Bytes()))
	return nil
}

// A builder makes the body of a page. What it can't get it leaves out or
// returns as an error, which then is the page.
type builder func(c *httpd.Call, p *page) error

// page makes the handler of a page: a session, the gate's health for the frame,
// the body.
func (s *Server) page(name, nav, title string, build builder) httpd.Handler {
	return func(c *httpd.Call) error {
		one, err := s.signedIn(c)
		if err != nil {
			return s.toLogin(c)
		}
		return s.build(c, one, name, nav, title, build)
	}
}

// posted is page for a form that asks something and changes nothing.
func (s *Server) posted(name, nav, title string, build func(c *httpd.Call, p *page, form formValues) error) httpd.Handler {
	return func(c *httpd.Call) error {
		one, form, err := s.signedForm(c)
		if err != nil {
			return s.refusedForm(c, err)
		}
		return s.build(c, one, name, nav, title, func(c *httpd.Call, p *page) error { return build(c, p, formValues{form}) })
	}
}

func (s *Server) build(c *httpd.Call, one session, name, nav, title string, build builder) error {
	p := &page{Title: title, Nav: nav, User: one.user, CSRF: one.csrf, UTC: one.utc}
	s.look(c, p)
	err := build(c, p)
	if err == nil {
		return s.show(c, http.StatusOK, name, p)
	}
	return s.showProblem(c, p, err)
}

// problem is a page that could not be made.
type problem struct {
	Code    string
	Message string
	ErrorID string
}

func (s *Server) showProblem(c *httpd.Call, p *page, err error) error {
	var refused *refusal
	if errors.As(err, &refused) {
		p.Body = problem{refused.ErrorCode, refused.Message, refused.ErrorID}
		return s.show(c, refused.status, "problem", p)
	}
	f := fault.Of(err)
	if f.Code == fault.Internal {
		s.log.Error("a page could not be made", "source", logSource, "request_id", c.RequestID, "page", p.Nav, "cause", err.Error())
	}
	message := forPerson(f.Message)
	if fields, ok := f.Details["fields"].(map[string]string); ok {
		message = fieldWords(fields)
	}
	p.Body = problem{string(f.Code), message, c.RequestID}
	return s.show(c, httpd.Status(f.Code), "problem", p)
}

func (s *Server) refusedForm(c *httpd.Call, err error) error {
	if f := fault.Of(err); f.Code != fault.LoginRequired {
		return s.showProblem(c, &page{Title: "Not done"}, err)
	}
	return redirect(c, "/login")
}

// toLogin sends a browser to the login and back afterwards.
func (s *Server) toLogin(c *httpd.Call) error {
	if c.Request.Header.Get(backgroundHeader) != "" {
		return fault.New(fault.LoginRequired, "There is no session, or it is over. Log in.")
	}
	return redirect(c, "/login?next="+escapeQuery(c.Request.URL.RequestURI()))
}

// look notes what every page says of the gate.
func (s *Server) look(c *httpd.Call, p *page) {
	p.Gate, p.Down = s.gateHealth(c)
	if read, err := fetch[stats](c.Request.Context(), s, "/runtime/stats"); err == nil { // the page is worth showing without it
		p.Waiting, p.Policy = read.ApprovalsPending, read.PolicyVersion
	}
}

// notFound answers a page's path with a page, and any other with the error object.
func (s *Server) notFound(c *httpd.Call) error {
	err := fault.New(fault.NotFound, "There is nothing at this address.")
	if strings.HasPrefix(c.Request.URL.Path, "/api/") || c.Request.Method != http.MethodGet {
		return err
	}
	one, signedOut := s.signedIn(c)
	if signedOut != nil {
		return s.toLogin(c)
	}
	p := &page{Title: "Nothing here", User: one.user, CSRF: one.csrf, UTC: one.utc}
	s.look(c, p)
	return s.showProblem(c, p, err)
}

// asset serves a file under an address that changes with its content.
func (s *Server) asset(c *httpd.Call) error {
	name := c.Params.ByName("file")
	content, ok := s.views.assets[name]
	if !ok || c.Params.ByName("stamp") != s.views.stamp {
		return fault.New(fault.NotFound, "There is no such file. Reload the page.")
	}
	h := c.Writer().Header()
	h.Set("Content-Type", mediaTypes[path.Ext(name)])
	h.Set("Cache-Control", "public, max-age=31536000, immutable")
	s.deliver(c, content)
	return nil
}

var mediaTypes = map[string]string{".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}

// deliver writes a whole answer. A browser that left meanwhile is no failure of
// ours; the log can be asked about it.
func (s *Server) deliver(c *httpd.Call, content []byte) {
	if _, err := c.Writer().Write(content); err != nil {
		s.log.Debug("the browser is gone", "source", logSource, "request_id", c.RequestID, "error", err)
	}
}
