package controlplane

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"writegate/commands/fault"
	"writegate/eventlog/checkpoint"
	"writegate/eventlog/evidence"
	"writegate/eventlog/frame"
	"writegate/http/httpd"
)

// checked is the last verification that somebody asked for here.
type checked struct {
	Report frame.Report
	At     time.Time
}

type reportBook struct {
	mu   sync.Mutex
	kept *checked
}

func (b *reportBook) last() *checked {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.kept
}

func (b *reportBook) keep(c *checked) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.kept = c
}

type evidenceView struct {
	Checked     *checked
	Fresh       bool // it was made just now
	Key         *signingKey
	KeyMissing  string
	Checkpoints []auditEvent
	Last        uint64
	Upload      *upload
	Problem     string
}

type signingKey struct {
	Algorithm string `json:"algorithm"`
	KeyID     string `json:"key_id"`
	PublicKey string `json:"public_key"`
	VKey      string `json:"vkey"`
}

// An upload is what became of a file that was handed in to be verified.
type upload struct {
	Name   string
	Kind   string
	Bytes  int64
	Report frame.Report
	Key    string // whose signature a bundle has: now, former, "" for none of the gate's; unknown; none of another kind
	Now    string // id of the gate's key of now
}

func (s *Server) evidencePage(c *httpd.Call, p *page) error {
	v, err := s.evidenceView(c, p)
	p.Body = v
	return err
}

func (s *Server) evidenceView(c *httpd.Call, p *page) (*evidenceView, error) {
	ctx := c.Request.Context()
	v := &evidenceView{Checked: s.reports.last()}
	if p.Gate != nil {
		v.Last = p.Gate.Log.Seq
	}
	if key, err := fetch[signingKey](ctx, s, "/audit/evidence/signing-public-key"); err == nil {
		v.Key = &key
	} else {
		v.KeyMissing = wordsOf(err)
	}
	signed, err := read[auditEvent](ctx, s, "/audit", 10, "event_type", "checkpoint_signed")
	v.Checkpoints = signed.Items
	if errors.As(err, new(*refusal)) {
		err = nil // a page without its list of checkpoints still serves
	}
	return v, err
}

// verifyNow asks the gate to check its whole chain.
func (s *Server) verifyNow(c *httpd.Call, p *page, _ formValues) error {
	report, err := fetch[frame.Report](c.Request.Context(), s, "/evidence/verify")
	if err != nil {
		return err
	}
	s.reports.keep(&checked{report, s.now()})
	v, err := s.evidenceView(c, p)
	if err != nil {
		return err
	}
	v.Fresh = true
	p.Body = v
	return nil
}

// export hands a bundle on to the browser as a file.
func (s *Server) export(c *httpd.Call) error {
	one, form, err := s.signedForm(c)
	if err != nil {
		return s.refusedForm(c, err)
	}
	from, errFrom := strconv.ParseUint(strings.TrimSpace(form.Get("start_seq")), 10, 63)
	to, errTo := strconv.ParseUint(strings.TrimSpace(form.Get("end_seq")), 10, 63)
	if errFrom != nil || errTo != nil {
		return s.evidenceProblem(c, one, "The range must be two sequence numbers, such as 1 and 100.")
	}
	body, err := jsonBody(map[string]any{"start_seq": from, "end_seq": to, "reason": form.Get("reason")})
	if err != nil {
		return err
	}
	ctx, cancel := s.whileSignedIn(c)
	defer cancel()
	a, err := s.send(ctx, request{method: http.MethodPost, path: "/audit/evidence", body: body, media: "application/json"})
	if err != nil {
		return s.evidenceProblem(c, one, wordsOf(err))
	}
	defer a.body.Close()
	if a.status != http.StatusOK {
		return s.evidenceProblem(c, one, refusedWords(a))
	}
	c.Writer().Header().Set("Content-Disposition", fmt.Sprintf(`attachment; filename="gate-evidence-%d-%d.json"`, from, to))
	return pass(c, a)
}

func refusedWords(a *answer) string {
	body, err := io.ReadAll(io.LimitReader(a.body, 1<<20))
	var e refusal
	if err == nil && httpd.DecodeJSON(body, &e) == nil && e.Message != "" {
		return e.Message
	}
	return "The gate refused the export. Look at its log."
}

func (s *Server) evidenceProblem(c *httpd.Call, one session, words string) error {
	return s.build(c, one, "evidence", "evidence", "Evidence", func(c *httpd.Call, p *page) error {
		v, err := s.evidenceView(c, p)
		if err != nil {
			return err
		}
		v.Problem = words
		p.Body = v
		return nil
	})
}

// checkUpload verifies a bundle or a readable log that a person hands in. The
// file is read once, as it comes, by the same code as the offline verifier's; it
// is kept nowhere. Nothing is read before the session is known, and the time of a
// file is given to whoever has shown its token.
func (s *Server) checkUpload(c *httpd.Call) error {
	one, err := s.fromPage(c)
	if err != nil {
		return s.refusedForm(c, err)
	}
	release, _, ok := s.uploads.Take(one.csrf)
	if !ok {
		return s.refusedForm(c, fault.New(fault.RateLimitExceeded, "Other files are being verified. Send this one when they are done.").With("retry_after_seconds", 10))
	}
	defer release()
	parts, err := newParts(c)
	if err != nil {
		return err
	}
	token, err := parts.next()
	if err != nil || token.FormName() != csrfField {
		return fault.New(fault.ValidationFailed, "The form can't be read. Reload the page and send it again.")
	}
	value, err := io.ReadAll(io.LimitReader(token, 200))
	if err != nil {
		return fault.New(fault.ValidationFailed, "The form ended early. Send it again.")
	}
	if err := one.holds(string(value)); err != nil {
		return s.refusedForm(c, err)
	}
	if err := http.NewResponseController(c.Writer()).SetReadDeadline(time.Now().Add(uploadTime)); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	file, err := parts.next()
	if _, out := s.signedIn(c); out != nil { // the form may have taken its time, and below the file
		return s.refusedForm(c, out)
	}
	if err != nil || file.FormName() != "file" || file.FileName() == "" {
		return s.evidenceProblem(c, one, "Choose a file first: an evidence bundle, or a readable log (JSONL).")
	}
	judged, err := s.judge(c, file)
	if _, out := s.signedIn(c); out != nil {
		return s.refusedForm(c, out)
	}
	if err != nil {
		return s.evidenceProblem(c, one, "The file did not arrive whole. Send it again.")
	}
	return s.build(c, one, "evidence", "evidence", "Evidence", func(c *httpd.Call, p *page) error {
		v, err := s.evidenceView(c, p)
		if err != nil {
			return err
		}
		v.Upload = judged
		p.Body = v
		return nil
	})
}

// parts are those of a form, one by one; nothing of them is kept in memory or on disk.
type parts struct {
	*multipart.Reader
	body io.Reader
	left int64 // bytes that may be read
}

// maxPartHead bounds what stands before a part, which is read as a whole.
const maxPartHead = 64 << 10

var errPartHead = errors.New("the head of a part is too large")

func newParts(c *httpd.Call) (*parts, error) {
	media, params, err := mime.ParseMediaType(c.Request.Header.Get("Content-Type"))
	if err != nil || media != "multipart/form-data" || params["boundary"] == "" {
		return nil, fault.New(fault.UnsupportedMediaType, "A file is sent by the form on the evidence page.")
	}
	p := &parts{body: http.MaxBytesReader(c.Writer(), c.Request.Body, maxUpload)}
	p.Reader = multipart.NewReader(p, params["boundary"])
	return p, nil
}

// Read implements io.Reader.
func (p *parts) Read(b []byte) (int, error) {
	if p.left <= 0 {
		return 0, errPartHead
	}
	n, err := p.body.Read(b[:min(int64(len(b)), p.left)])
	p.left -= int64(n)
	return n, err
}

// next is NextPart. It skips what is left of the part before.
func (p *parts) next() (*multipart.Part, error) {
	p.left = maxPartHead
	part, err := p.NextPart()
	p.left = maxUpload
	return part, err
}

// uploadTime is how long a file may take to arrive.
const uploadTime = 10 * time.Minute

// judge tells a bundle from a readable log by its first bytes, and verifies it:
// by the gate's own key where that is to be had.
func (s *Server) judge(c *httpd.Call, file *multipart.Part) (*upload, error) {
	counted := &countingReader{r: file}
	in := bufio.NewReader(counted)
	u := &upload{Name: cutRunes(file.FileName(), 120), Kind: "bundle"}
	options, now := s.keysFor(c)
	head, err := in.Peek(64)
	if err != nil && len(head) == 0 && !errors.Is(err, io.EOF) {
		return nil, err
	}
	judge := evidence.Verify
	if bytes.HasPrefix(head, []byte(`{"seq":`)) {
		u.Kind, judge = "readable log", evidence.VerifyJSONL
	}
	report, err := judge(c.Request.Context(), in, options)
	if err != nil {
		return nil, err
	}
	u.Report, u.Bytes, u.Now = report, counted.n, now
	switch {
	case u.Kind != "bundle":
		u.Key = "none"
	case now == "":
		u.Key = "unknown"
	case report.Signature == evidence.SignatureTrusted && report.SignedBy == now:
		u.Key = "now"
	case report.Signature == evidence.SignatureTrusted:
		u.Key = "former"
	}
	u.Report.Path = ""
	return u, nil
}

// keysFor are the gate's key and those that its log names. now is the id of the first, ""
// where it is not at hand.
func (s *Server) keysFor(c *httpd.Call) (o evidence.Options, now string) {
	key, err := fetch[signingKey](c.Request.Context(), s, "/audit/evidence/signing-public-key")
	if err != nil {
		return o, ""
	}
	public, err := checkpoint.ParsePublicKey([]byte(key.PublicKey))
	if err != nil {
		return o, ""
	}
	keys := []checkpoint.PublicKey{public}
	starts, _ := read[auditEvent](c.Request.Context(), s, "/audit", mostStarts, "event_type", "startup") // without them the key of today counts
	for _, e := range starts.Items {
		var start struct {
			SigningVKey string `json:"signing_vkey"`
		}
		if json.Unmarshal(e.Payload, &start) != nil {
			continue
		}
		if _, key, err := checkpoint.ParseVKey(start.SigningVKey); err == nil && !slices.Contains(keys, key) {
			keys = append(keys, key)
		}
	}
	return evidence.Options{Keys: keys}, public.ID()
}

// mostStarts are those whose keys are known: a key that was changed goes on vouching for
// what it signed.
const mostStarts = 1000

type countingReader struct {
	r io.Reader
	n int64
}

func (c *countingReader) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	return n, err
}
