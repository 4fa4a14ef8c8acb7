package checkpoint

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"golang.org/x/mod/sumdb/note"
)

const (
	// witnessTimeout bounds one request; a witness that is slower is out of reach.
	witnessTimeout = 10 * time.Second
	// witnessAnswer bounds what is read of an answer.
	witnessAnswer = 64 << 10
	// witnessTries bounds how often a proof is made from another size: once at
	// the start, and once more when somebody else offered a checkpoint meanwhile.
	witnessTries = 3
)

// ErrWitness says that a witness gave no cosignature, and that nothing about
// the log follows from it: out of reach, refusing, or not making sense.
var ErrWitness = errors.New("no cosignature")

// A Conflict says that a witness has seen what contradicts this log. It wraps
// ErrBeyondEnd or ErrRewritten.
type Conflict struct {
	Witness string // its URL
	Offered uint64 // size of the checkpoint that was offered
	Seen    uint64 // size that the witness knows
	Err     error
}

func (c *Conflict) Error() string {
	return fmt.Sprintf("%v: the witness %s has seen %d events and was offered %d", c.Err, c.Witness, c.Seen, c.Offered)
}

// Unwrap gives ErrBeyondEnd or ErrRewritten.
func (c *Conflict) Unwrap() error { return c.Err }

// A Witness is the client of one witness (C2SP tlog-witness). Requests are
// made one at a time; it may be used by many goroutines.
type Witness struct {
	url    string
	vkeys  []string
	client *http.Client

	mu      sync.Mutex
	last    uint64 // size that the witness knows, as far as it told
	offered uint64 // largest size that was ever sent to it
}

// NewWitness makes the client of the witness at base, whose cosignatures are
// believed under vkeys. transport may be nil. Plain http is taken for loopback
// addresses only: an answer that was changed on its way can accuse a log.
func NewWitness(base string, vkeys []string, transport http.RoundTripper) (*Witness, error) {
	if err := checkWitnessURL(base); err != nil {
		return nil, err
	}
	if len(vkeys) == 0 {
		return nil, fmt.Errorf("%w: the witness %s has no key", ErrKey, base)
	}
	for _, vkey := range vkeys {
		if _, _, err := ParseWitnessVKey(vkey); err != nil {
			return nil, err
		}
	}
	client := &http.Client{
		Transport:     transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return &Witness{url: strings.TrimSuffix(base, "/"), vkeys: vkeys, client: client}, nil
}

func checkWitnessURL(base string) error {
	u, err := url.Parse(base)
	if err != nil || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" || u.Opaque != "" {
		return errors.New("the URL of a witness is scheme, host and path alone")
	}
	ip := net.ParseIP(u.Hostname())
	near := u.Hostname() == "localhost" || ip != nil && ip.IsLoopback()
	if u.Scheme != "https" && !(u.Scheme == "http" && near) {
		return fmt.Errorf("the witness %s has to be reached by https; http is for loopback addresses", base)
	}
	return nil
}

// URL names the witness.
func (w *Witness) URL() string { return w.url }

// Cosign offers the newest checkpoint n of the log whose tree r reads, and
// gives it back with the witness's cosignature. An error wraps ErrWitness,
// which says nothing about the log; or it is a *Conflict, which says that the
// log was cut or written anew; or ErrTree, when the stored hashes contradict n.
//
// Checkpoints have to be offered in the order of their sizes, and the first one
// of a process has to cover the log's head: else the witness's own truth would
// look like an accusation. A smaller one than before is not sent.
func (w *Witness) Cosign(ctx context.Context, r Reader, n *Note) (*Note, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if n.Size < w.offered {
		return nil, fmt.Errorf("%w: %d events were offered to %s after %d", ErrWitness, n.Size, w.url, w.offered)
	}
	w.offered = n.Size
	old := min(w.last, n.Size)
	for range witnessTries {
		body, err := addCheckpoint(r, old, n)
		if err != nil {
			return nil, err
		}
		a, err := w.post(ctx, body)
		if err != nil {
			return nil, err
		}
		if a.status == http.StatusOK {
			return w.accept(n, a.body)
		}
		if old, err = w.judge(a, old, n.Size); err != nil {
			return nil, err
		}
		w.last = old
	}
	return nil, fmt.Errorf("%w: %s asked for another size %d times", ErrWitness, w.url, witnessTries)
}

// Seen asks how many events the witness knows, by its answer to the checkpoint of none, which is
// empty: it comes to know of no event by it. An error wraps ErrWitness.
func (w *Witness) Seen(ctx context.Context, empty *Note) (uint64, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	a, err := w.post(ctx, append([]byte("old 0\n\n"), empty.Raw...))
	switch {
	case err != nil:
		return 0, err
	case a.status == http.StatusConflict:
		size, err := sizeOf(a)
		if err != nil {
			return 0, fmt.Errorf("%w: %s answered a conflict without its size: %w", ErrWitness, w.url, err)
		}
		w.last = size
		return size, nil
	case a.status == http.StatusOK:
		_, err = w.accept(empty, a.body)
		return 0, err
	}
	return 0, fmt.Errorf("%w: %s answered %d %.200q", ErrWitness, w.url, a.status, a.body)
}

// addCheckpoint is the body of a request. The proof is checked first: where the
// stored hashes do not lead from old to the checkpoint, the fault is ours, and
// the witness must not be made to say that history was rewritten.
func addCheckpoint(r Reader, old uint64, n *Note) ([]byte, error) {
	root, err := RootAt(r, n.Size)
	if err != nil {
		return nil, err
	}
	if root != n.Root {
		return nil, fmt.Errorf("%w: another root than the checkpoint's at %d events", ErrTree, n.Size)
	}
	proof, err := ProveConsistency(r, old, n.Size)
	if err != nil {
		return nil, err
	}
	oldRoot, err := RootAt(r, old)
	if err != nil {
		return nil, err
	}
	if err := CheckConsistency(proof, n.Size, n.Root, old, oldRoot); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrTree, err)
	}
	body := fmt.Appendf(nil, "old %d\n", old)
	for _, h := range proof {
		body = fmt.Appendf(body, "%s\n", base64.StdEncoding.EncodeToString(h[:]))
	}
	body = append(body, '\n')
	return append(body, n.Raw...), nil
}

// An answer is what a witness said.
type answer struct {
	status int
	kind   string // its media type
	body   []byte
}

func (w *Witness) post(ctx context.Context, body []byte) (a answer, err error) {
	ctx, cancel := context.WithTimeout(ctx, witnessTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, w.url+"/add-checkpoint", bytes.NewReader(body))
	if err != nil {
		return a, fmt.Errorf("%w: %w", ErrWitness, err)
	}
	req.Header.Set("Content-Type", "text/plain; charset=utf-8")
	// It may be sent twice, which net/http is told by this name without a value (see
	// http.Transport): a witness that closed an idle connection is asked on another.
	req.Header["Idempotency-Key"] = nil
	resp, err := w.client.Do(req)
	if err != nil {
		return a, fmt.Errorf("%w: %w", ErrWitness, err)
	}
	a.status = resp.StatusCode
	a.kind, _, _ = mime.ParseMediaType(resp.Header.Get("Content-Type")) // unreadable is no type
	a.body, err = io.ReadAll(io.LimitReader(resp.Body, witnessAnswer+1))
	if err = errors.Join(err, resp.Body.Close()); err != nil {
		return a, fmt.Errorf("%w: the answer of %s: %w", ErrWitness, w.url, err)
	}
	if len(a.body) > witnessAnswer {
		return a, fmt.Errorf("%w: %s answered more than %d bytes", ErrWitness, w.url, witnessAnswer)
	}
	return a, nil
}

// judge reads an answer that is no cosignature: either it names the size to
// prove from, or it is the end of the matter.
func (w *Witness) judge(a answer, old, size uint64) (next uint64, err error) {
	switch a.status {
	case http.StatusConflict:
		return w.conflict(a, old, size)
	case http.StatusUnprocessableEntity:
		if old > 0 { // our proof holds from our root at old, so the witness has another one
			return 0, &Conflict{Witness: w.url, Offered: size, Seen: old, Err: ErrRewritten}
		}
	}
	return 0, fmt.Errorf("%w: %s answered %d %.200q", ErrWitness, w.url, a.status, a.body)
}

// conflict reads a 409: the witness knows another size, or another root at ours.
func (w *Witness) conflict(a answer, old, size uint64) (next uint64, err error) {
	seen, err := sizeOf(a)
	switch {
	case err == nil && seen > size:
		w.last = seen
		return 0, &Conflict{Witness: w.url, Offered: size, Seen: seen, Err: ErrBeyondEnd}
	case old == size && (err != nil || seen == size): // no size has to be told here
		return 0, &Conflict{Witness: w.url, Offered: size, Seen: size, Err: ErrRewritten}
	case err != nil:
		return 0, fmt.Errorf("%w: %s answered a conflict without its size: %w", ErrWitness, w.url, err)
	}
	return seen, nil
}

func sizeOf(a answer) (uint64, error) {
	text, ok := strings.CutSuffix(string(a.body), "\n")
	if a.kind != "text/x.tlog.size" || !ok {
		return 0, fmt.Errorf("%w: %.40q of type %.40q", ErrMalformed, a.body, a.kind)
	}
	return parseSize(text)
}

// accept takes the cosignatures of known keys out of an answer and adds them to
// the note. What else stands there, such as keys we do not know, is left.
func (w *Witness) accept(n *Note, lines []byte) (*Note, error) {
	known, err := Keys{Witnesses: w.vkeys}.verifiers(n.Origin)
	if err != nil {
		return nil, err
	}
	opened, err := note.Open(append([]byte(n.Text()+"\n"), lines...), known)
	if err != nil {
		return nil, fmt.Errorf("%w: the answer of %s: %w", ErrWitness, w.url, err)
	}
	var added []string
	for _, sig := range opened.Sigs {
		added = append(added, fmt.Sprintf("— %s %s\n", sig.Name, sig.Base64))
	}
	cosigned, err := n.with(added, w.vkeys)
	if err != nil {
		return nil, fmt.Errorf("%w: the answer of %s: %w", ErrWitness, w.url, err)
	}
	w.last = n.Size
	return cosigned, nil
}

// Offer offers n to many witnesses at once, so that one that is out of reach
// does not hold up the others, and gives kept back, which says the same as n, with all
// cosignatures that were had. What lies on a disk may have lines, or be signed by a key,
// that a witness does not take; so n is one that is signed for it. The errors are in the order of the witnesses, nil where one cosigned;
// see Witness.Cosign for what they say. r is read by many goroutines.
func Offer(ctx context.Context, witnesses []*Witness, r Reader, n, kept *Note) (*Note, []error) {
	cosigned, errs := make([]*Note, len(witnesses)), make([]error, len(witnesses))
	var all sync.WaitGroup
	for i, w := range witnesses {
		all.Go(func() { cosigned[i], errs[i] = w.Cosign(ctx, r, n) })
	}
	all.Wait()
	for i, c := range cosigned {
		if errs[i] != nil {
			continue
		}
		merged, err := kept.with(c.signatureLines(), witnesses[i].vkeys)
		if err != nil {
			errs[i] = fmt.Errorf("%w: %s: %w", ErrWitness, witnesses[i].url, err)
			continue
		}
		kept = merged
	}
	return kept, errs
}
