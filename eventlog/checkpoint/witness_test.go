package checkpoint_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/mod/sumdb/tlog"

	"writegate/eventlog/checkpoint"
	"writegate/fixtures/witness/witnesstest"
)

const origin = "gate.example"

// A host is a log's owner: what it has, and what an attacker on it can change.
type host struct {
	signer *checkpoint.Signer
	m      *checkpoint.Memory
}

func newHost(t testing.TB, hashes [][32]byte) *host {
	_, m := grow(t, hashes)
	return &host{newSigner(t, origin, newKey(t)), m}
}

// with is the same host and key with another log.
func (h *host) with(t testing.TB, hashes [][32]byte) *host {
	_, m := grow(t, hashes)
	return &host{h.signer, m}
}

func (h *host) note(t testing.TB, size uint64) *checkpoint.Note {
	t.Helper()
	n, err := h.signer.Sign(h.m, size, nil)
	require.NoError(t, err)
	return n
}

func client(t testing.TB, w *witnesstest.Witness) *checkpoint.Witness {
	t.Helper()
	c, err := checkpoint.NewWitness(w.URL, []string{goldenWitness, w.VKey}, nil)
	require.NoError(t, err)
	return c
}

func TestAWitnessCosignsAGrowingLog(t *testing.T) {
	h := newHost(t, history(1, 50))
	w := witnesstest.Start(t, t.TempDir(), h.signer.VKey())
	c := client(t, w)
	for _, size := range []uint64{1, 7, 7, 8, 33, 50} {
		n, err := c.Cosign(t.Context(), h.m, h.note(t, size))
		require.NoError(t, err)
		require.True(t, n.Trusted)
		require.Equal(t, size, n.Size)
		require.Len(t, n.Cosignatures, 1)
		require.Equal(t, "witness.example", n.Cosignatures[0].Name)

		again, err := checkpoint.Open(n.Raw, checkpoint.Keys{Log: []checkpoint.PublicKey{h.signer.Public()}, Witnesses: []string{w.VKey}})
		require.NoError(t, err)
		require.True(t, again.Trusted)
		require.Equal(t, n.Cosignatures, again.Cosignatures)
	}
	_, err := c.Cosign(t.Context(), h.m, h.note(t, 49))
	require.ErrorIs(t, err, checkpoint.ErrWitness, "an older one is not sent: its refusal would look like a cut")
	require.NotErrorIs(t, err, checkpoint.ErrBeyondEnd)

	n, err := client(t, w).Cosign(t.Context(), h.m, h.note(t, 50))
	require.NoError(t, err, "a new process learns from the witness where it stands")
	require.Len(t, n.Cosignatures, 1)
}

func TestCosignaturesOfManyWitnessesMeetInOneNote(t *testing.T) {
	h := newHost(t, history(1, 9))
	n := h.note(t, 9)
	keys := checkpoint.Keys{Log: []checkpoint.PublicKey{h.signer.Public()}}
	for range 2 {
		w := witnesstest.Start(t, t.TempDir(), h.signer.VKey())
		keys.Witnesses = append(keys.Witnesses, w.VKey)
		var err error
		n, err = client(t, w).Cosign(t.Context(), h.m, n)
		require.NoError(t, err)
	}
	require.True(t, n.Trusted)
	require.Len(t, n.Cosignatures, 2)
	again, err := checkpoint.Open(n.Raw, keys)
	require.NoError(t, err)
	require.Equal(t, n.Cosignatures, again.Cosignatures)
	require.Empty(t, again.Unknown)
}

func TestAnOfferIsMadeToAllWitnessesAtOnce(t *testing.T) {
	h := newHost(t, history(1, 9))
	near, far := witnesstest.Start(t, t.TempDir(), h.signer.VKey()), witnesstest.Start(t, t.TempDir(), h.signer.VKey())
	gone := serving(t, says(503, "text/plain", "later\n"))
	ahead := serving(t, says(409, "text/x.tlog.size", "10\n"))

	n, errs := checkpoint.Offer(t.Context(), []*checkpoint.Witness{client(t, near), gone, ahead, client(t, far)}, h.m, h.note(t, 9), h.note(t, 9))
	require.NoError(t, errs[0])
	requireNoAccusation(t, errs[1], "")
	require.ErrorIs(t, errs[2], checkpoint.ErrBeyondEnd)
	require.NoError(t, errs[3])
	require.True(t, n.Trusted)
	require.Len(t, n.Cosignatures, 2)
	again, err := checkpoint.Open(n.Raw, checkpoint.Keys{Log: []checkpoint.PublicKey{h.signer.Public()}, Witnesses: []string{near.VKey, far.VKey}})
	require.NoError(t, err)
	require.Equal(t, n.Cosignatures, again.Cosignatures)
	require.Empty(t, again.Unknown)
	require.Equal(t, 3, strings.Count(string(n.Raw), "— "), "no signature stands there twice")

	alone := h.note(t, 9)
	n, errs = checkpoint.Offer(t.Context(), nil, h.m, alone, alone)
	require.Empty(t, errs)
	require.Equal(t, alone, n)
}

// All that one host has was rolled back, files, key and anchors: the witness
// remembers, and so it does after its own death.
func TestAWitnessKnowsOfACutTail(t *testing.T) {
	state := t.TempDir()
	h := newHost(t, history(1, 40))
	w := witnesstest.Start(t, state, h.signer.VKey())
	_, err := client(t, w).Cosign(t.Context(), h.m, h.note(t, 40))
	require.NoError(t, err)
	w.Kill(t)

	w = witnesstest.Start(t, state, h.signer.VKey())
	for _, size := range []uint64{1, 20, 39} {
		cut := h.with(t, history(1, int(size)))
		_, err = client(t, w).Cosign(t.Context(), cut.m, cut.note(t, size))
		require.ErrorIs(t, err, checkpoint.ErrBeyondEnd)
		var c *checkpoint.Conflict
		require.ErrorAs(t, err, &c)
		require.Equal(t, [2]uint64{40, size}, [2]uint64{c.Seen, c.Offered})
		require.NotErrorIs(t, err, checkpoint.ErrWitness)
	}
}

func TestAWitnessKnowsOfARewrittenHistory(t *testing.T) {
	h := newHost(t, history(1, 40))
	w := witnesstest.Start(t, t.TempDir(), h.signer.VKey())
	same := client(t, w)
	_, err := same.Cosign(t.Context(), h.m, h.note(t, 40))
	require.NoError(t, err)
	for _, size := range []int{40, 41, 64, 90} {
		for _, from := range []uint64{1, 17, 40} {
			forged := h.with(t, rewritten(size, from))
			for _, c := range []*checkpoint.Witness{client(t, w), same} {
				_, err = c.Cosign(t.Context(), forged.m, forged.note(t, uint64(size)))
				require.ErrorIs(t, err, checkpoint.ErrRewritten, "%d from %d", size, from)
			}
		}
	}
	longer := h.with(t, history(1, 91))
	_, err = client(t, w).Cosign(t.Context(), longer.m, longer.note(t, 91))
	require.NoError(t, err, "the true history goes on")
}

func TestAWitnessThatDoesNotKnowTheLogAccusesNobody(t *testing.T) {
	h := newHost(t, history(1, 4))
	stranger := newHost(t, history(1, 4)) // another key of the same origin
	w := witnesstest.Start(t, t.TempDir(), h.signer.VKey())
	for _, test := range []struct {
		name   string
		host   *host
		answer string
	}{
		{"another key", stranger, "403"},
		{"another origin", &host{newSigner(t, "else.example", newKey(t)), h.m}, "404"},
	} {
		_, err := client(t, w).Cosign(t.Context(), test.host.m, test.host.note(t, 4))
		requireNoAccusation(t, err, test.name)
		require.ErrorContains(t, err, test.answer)
	}
	c := client(t, w)
	w.Stop(t)
	_, err := c.Cosign(t.Context(), h.m, h.note(t, 4))
	requireNoAccusation(t, err, "out of reach")
}

func requireNoAccusation(t testing.TB, err error, what string) {
	t.Helper()
	require.ErrorIs(t, err, checkpoint.ErrWitness, what)
	require.NotErrorIs(t, err, checkpoint.ErrBeyondEnd, what)
	require.NotErrorIs(t, err, checkpoint.ErrRewritten, what)
}

// serving starts a server that answers as it likes.
func serving(t testing.TB, answer http.HandlerFunc) *checkpoint.Witness {
	t.Helper()
	s := httptest.NewServer(answer)
	t.Cleanup(s.Close)
	c, err := checkpoint.NewWitness(s.URL+"/prefix/", []string{goldenWitness}, nil)
	require.NoError(t, err)
	return c
}

func says(status int, kind, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", kind)
		w.WriteHeader(status)
		io.WriteString(w, body)
	}
}

func TestAnswersThatMakeNoSenseAccuseNobody(t *testing.T) {
	const size = "text/x.tlog.size"
	for name, answer := range map[string]http.HandlerFunc{
		"no cosignature":              says(200, "text/plain", ""),
		"a stranger's cosignature":    says(200, "text/plain", "— else.example "+goldenCosignature[len("— witness.example/w1 "):]),
		"one of another checkpoint":   says(200, "text/plain", goldenCosignature),
		"a note of its own":           says(200, "text/plain", goldenNote+goldenCosignature),
		"no note lines":               says(200, "text/html", "<html></html>\n"),
		"422 without a proof":         says(422, "text/plain", "no\n"),
		"a conflict without its size": says(409, "text/plain", "9\n"),
		"a size with a sign":          says(409, size, "+9\n"),
		"a size without a line end":   says(409, size, "9"),
		"a size of no log":            says(409, size, "18446744073709551615\n"),
		"the size it was given":       says(409, size, "0\n"),
		"400":                         says(400, "text/plain", "no\n"),
		"500":                         says(500, "text/plain", strings.Repeat("x", 10_000)),
		"a cut connection":            func(w http.ResponseWriter, r *http.Request) { panic(http.ErrAbortHandler) },
		"a cut answer": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", "100")
			io.WriteString(w, "—")
		},
		"another size each time": func() http.HandlerFunc {
			next := 0
			return func(w http.ResponseWriter, r *http.Request) {
				next++
				says(409, size, string(rune('0'+next))+"\n")(w, r)
			}
		}(),
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t, history(1, 6))
			_, err := serving(t, answer).Cosign(t.Context(), h.m, h.note(t, 6))
			requireNoAccusation(t, err, name)
			require.Less(t, len(err.Error()), 1000)
		})
	}
}

func TestAnAnswerIsNotReadForEver(t *testing.T) {
	h := newHost(t, history(1, 6))
	_, err := serving(t, says(200, "text/plain", strings.Repeat("x", 1<<20))).Cosign(t.Context(), h.m, h.note(t, 6))
	requireNoAccusation(t, err, "")
	require.ErrorContains(t, err, "more than 65536 bytes")
}

func TestARedirectIsNotFollowed(t *testing.T) {
	h := newHost(t, history(1, 6))
	var paths []string
	_, err := serving(t, func(w http.ResponseWriter, r *http.Request) {
		paths = append(paths, r.URL.Path)
		http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
	}).Cosign(t.Context(), h.m, h.note(t, 6))
	requireNoAccusation(t, err, "")
	require.ErrorContains(t, err, "307")
	require.Equal(t, []string{"/prefix/add-checkpoint"}, paths)
}

func TestACosignatureIsAddedOnce(t *testing.T) {
	signer := newSigner(t, origin, goldenKey(t))
	m := goldenTree(t)
	n, err := signer.Sign(m, 1, nil)
	require.NoError(t, err)
	c := serving(t, says(200, "text/plain", "— else.example AAAAAAAA\n"+goldenCosignature))
	for range 2 {
		n, err = c.Cosign(t.Context(), m, n)
		require.NoError(t, err)
		require.Equal(t, goldenNote+goldenCosignature, string(n.Raw), "and a stranger's not at all")
	}
}

// Between two checkpoints a witness, or what stands before it, closes a
// connection that nobody uses, perhaps just when it is used again.
func TestAWitnessThatHungUpMeanwhileIsAskedAgain(t *testing.T) {
	signer := newSigner(t, origin, goldenKey(t))
	m := goldenTree(t)
	n, err := signer.Sign(m, 1, nil)
	require.NoError(t, err)
	var asked atomic.Int32
	c := serving(t, func(w http.ResponseWriter, r *http.Request) {
		if asked.Add(1) == 2 {
			panic(http.ErrAbortHandler) // on the connection of the first time
		}
		says(200, "text/plain", goldenCosignature)(w, r)
	})
	for range 2 {
		_, err = c.Cosign(t.Context(), m, n)
		require.NoError(t, err)
	}
	require.EqualValues(t, 3, asked.Load())
}

// The page gives no body to the conflict of two roots at one size.
func TestAConflictAtOurOwnSizeNeedsNoSize(t *testing.T) {
	h := newHost(t, history(1, 6))
	asked := 0
	c := serving(t, func(w http.ResponseWriter, r *http.Request) {
		if asked++; asked == 1 {
			says(409, "text/x.tlog.size; charset=utf-8", "6\n")(w, r)
			return
		}
		says(409, "text/plain", "")(w, r)
	})
	_, err := c.Cosign(t.Context(), h.m, h.note(t, 6))
	require.ErrorIs(t, err, checkpoint.ErrRewritten)
	require.Equal(t, 2, asked)
}

func TestARequestHasTheBytesOfItsPage(t *testing.T) {
	h := newHost(t, history(1, 6))
	var bodies []string
	c := serving(t, func(w http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		assert.NoError(t, err)
		assert.Equal(t, "POST /prefix/add-checkpoint", r.Method+" "+r.URL.Path)
		bodies = append(bodies, string(b))
		says(409, "text/x.tlog.size", "4\n")(w, r)
	})
	n := h.note(t, 6)
	_, err := c.Cosign(t.Context(), h.m, n)
	requireNoAccusation(t, err, "")
	require.Equal(t, "old 0\n\n"+string(n.Raw), bodies[0])
	require.Regexp(t, `^old 4\n([A-Za-z0-9+/]{43}=\n)+\n`, bodies[1])
	require.True(t, strings.HasSuffix(bodies[1], "\n\n"+string(n.Raw)))
}

// Before a witness can be made to accuse, the own proof has to hold: a stored
// hash that went bad is a fault of the store and not of the log.
func TestStoredHashesThatChangedAreNotBlamedOnHistory(t *testing.T) {
	h := newHost(t, history(1, 20))
	n := h.note(t, 20)
	offer := func(r checkpoint.Reader) (asked int, err error) {
		c := serving(t, func(w http.ResponseWriter, r *http.Request) {
			if asked++; asked == 1 {
				says(409, "text/x.tlog.size", "11\n")(w, r)
				return
			}
			says(422, "text/plain", "no\n")(w, r)
		})
		_, err = c.Cosign(t.Context(), r, n)
		return asked, err
	}
	asked, err := offer(h.m)
	require.ErrorIs(t, err, checkpoint.ErrRewritten)
	require.Equal(t, 2, asked)
	for what, test := range map[string]struct {
		index int64
		asked int
	}{
		"in the root":            {tlog.StoredHashIndex(2, 4), 0},
		"in the old root":        {tlog.StoredHashIndex(1, 4), 1},
		"in the proof":           {tlog.StoredHashIndex(0, 11), 1},
		"higher up in the proof": {tlog.StoredHashIndex(2, 3), 1},
	} {
		asked, err := offer(flipped{h.m, test.index})
		require.ErrorIs(t, err, checkpoint.ErrTree, what)
		require.NotErrorIs(t, err, checkpoint.ErrRewritten, what)
		require.Equal(t, test.asked, asked, what)
	}
}

func TestACheckpointOfAnotherTreeIsNotOffered(t *testing.T) {
	h := newHost(t, history(1, 6))
	c := serving(t, func(http.ResponseWriter, *http.Request) { t.Error("it was sent") })
	_, err := c.Cosign(t.Context(), h.m, h.with(t, rewritten(6, 3)).note(t, 6))
	require.ErrorIs(t, err, checkpoint.ErrTree)
}

func TestACanceledRequestIsNoAccusation(t *testing.T) {
	h := newHost(t, history(1, 6))
	ctx, cancel := context.WithCancel(t.Context())
	c := serving(t, func(w http.ResponseWriter, r *http.Request) {
		_, err := io.ReadAll(r.Body) // or the server would not notice that the client left
		assert.NoError(t, err)
		cancel()
		<-r.Context().Done()
	})
	_, err := c.Cosign(ctx, h.m, h.note(t, 6))
	requireNoAccusation(t, err, "")
	require.ErrorIs(t, err, context.Canceled)
}

func TestWhereAWitnessMayBe(t *testing.T) {
	for _, good := range []string{"https://witness.example", "https://witness.example:8443/a/b/", "http://127.0.0.1:80", "http://[::1]:80/x", "http://localhost"} {
		_, err := checkpoint.NewWitness(good, []string{goldenWitness}, nil)
		require.NoError(t, err, good)
	}
	for _, bad := range []string{"", "witness.example", "http://witness.example", "http://10.0.0.1", "http://localhost.example", "ftp://localhost", "https://",
		"https://u:p@witness.example", "https://witness.example?x=1", "https://witness.example/#x", "https:opaque", "https://a b"} {
		_, err := checkpoint.NewWitness(bad, []string{goldenWitness}, nil)
		require.Error(t, err, bad)
	}
	_, err := checkpoint.NewWitness("https://u:secret@witness.example", []string{goldenWitness}, nil)
	require.NotContains(t, err.Error(), "secret")
	_, err = checkpoint.NewWitness("https://witness.example", nil, nil)
	require.ErrorIs(t, err, checkpoint.ErrKey)
	_, err = checkpoint.NewWitness("https://witness.example", []string{goldenVKey}, nil)
	require.ErrorIs(t, err, checkpoint.ErrKey, "a log's key")
}

func TestAWitnessOverTLS(t *testing.T) {
	h := newHost(t, history(1, 6))
	s := httptest.NewTLSServer(says(404, "text/plain", "no\n"))
	defer s.Close()
	distrusting, err := checkpoint.NewWitness(s.URL, []string{goldenWitness}, nil)
	require.NoError(t, err)
	_, err = distrusting.Cosign(t.Context(), h.m, h.note(t, 6))
	requireNoAccusation(t, err, "an unknown certificate")
	require.ErrorContains(t, err, "certificate")
	trusting, err := checkpoint.NewWitness(s.URL, []string{goldenWitness}, s.Client().Transport)
	require.NoError(t, err)
	_, err = trusting.Cosign(t.Context(), h.m, h.note(t, 6))
	require.ErrorContains(t, err, "404")
}
