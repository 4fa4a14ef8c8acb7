package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"writegate/eventlog/checkpoint"
	"writegate/eventlog/event"
	"writegate/eventlog/evidence"
	"writegate/eventlog/frame"
)

// busy gives a gate a log with some of everything in it.
func (g *testGate) busy(t testing.TB) {
	t.Helper()
	for range 5 {
		require.Equal(t, http.StatusOK, g.query(t, ask("SELECT id FROM orders WHERE id = 1")).status)
		require.Equal(t, http.StatusForbidden, g.query(t, ask("DELETE FROM orders")).status)
	}
	require.Equal(t, http.StatusAccepted, g.query(t, ask("DELETE FROM order_items WHERE order_id = 2")).status)
}

func TestABundleIsCheckedWithoutTheService(t *testing.T) {
	t.Parallel()
	g := startShop(t)
	g.busy(t)
	head := g.head(t)
	bundle := g.post(t, "/audit/evidence", `{"start_seq":1,"end_seq":`+strconv.FormatUint(head, 10)+`,"reason":"yearly audit"}`)
	require.Equal(t, http.StatusOK, bundle.status, "%s", bundle.body)
	report, err := evidence.Verify(context.Background(), bytes.NewReader(bundle.body), evidence.Options{})
	require.NoError(t, err)
	require.Equal(t, frame.OK, report.Status, "%+v", report.Faults)
	require.Equal(t, head, report.EventCount)
	require.NotContains(t, strings.Join(report.NotExcluded, ";"), "signature: none")
	report, err = evidence.Verify(context.Background(), bytes.NewReader(bundle.body), evidence.Options{Keys: []checkpoint.PublicKey{g.signing.key}})
	require.NoError(t, err)
	require.Equal(t, frame.OK, report.Status, "%+v", report.Faults)
	var told struct {
		Checkpoint string `json:"checkpoint"`
	}
	unmarshal(t, bundle.body, &told)
	note, err := checkpoint.Open([]byte(told.Checkpoint), checkpoint.Keys{Log: []checkpoint.PublicKey{g.signing.key}})
	require.NoError(t, err)
	require.True(t, note.Trusted)
	require.GreaterOrEqual(t, note.Size, head, "the bundle is vouched for by a checkpoint that covers it")
	require.FileExists(t, g.file(fmt.Sprintf("audit.wal.checkpoints/000000/%020d.note", note.Size)))

	changed := bytes.Replace(bundle.body, []byte("yearly"), []byte("weekly"), 1)
	report, err = evidence.Verify(context.Background(), bytes.NewReader(changed), evidence.Options{})
	require.NoError(t, err)
	require.Equal(t, frame.Corruption, report.Status, "the reason is signed")
	changed = bytes.Replace(bundle.body, []byte(`"decision":"BLOCK"`), []byte(`"decision":"ALLOW"`), 1)
	report, err = evidence.Verify(context.Background(), bytes.NewReader(changed), evidence.Options{})
	require.NoError(t, err)
	require.Equal(t, frame.Corruption, report.Status)
}

func TestABundleThatIsNotMade(t *testing.T) {
	t.Parallel()
	g := startShop(t, "GATE_EVIDENCE_MAX_EVENTS=10")
	g.busy(t)
	head := g.head(t)
	for name, c := range map[string]struct {
		body   string
		status int
		code   string
	}{
		"no range":         {`{}`, http.StatusBadRequest, "validation_failed"},
		"before the log":   {`{"start_seq":0,"end_seq":3}`, http.StatusBadRequest, "validation_failed"},
		"beyond the log":   {`{"start_seq":1,"end_seq":1000000}`, http.StatusBadRequest, "validation_failed"},
		"backwards":        {`{"start_seq":3,"end_seq":2}`, http.StatusBadRequest, "validation_failed"},
		"a long reason":    {`{"start_seq":1,"end_seq":2,"reason":"` + strings.Repeat("x", 4097) + `"}`, http.StatusBadRequest, "validation_failed"},
		"too many events":  {`{"start_seq":1,"end_seq":11}`, http.StatusRequestEntityTooLarge, "result_too_large"},
		"an unknown field": {`{"start_seq":1,"end_seq":2,"x":1}`, http.StatusBadRequest, "invalid_json"},
	} {
		t.Run(name, func(t *testing.T) {
			details := requireFault(t, g.post(t, "/audit/evidence", c.body), c.status, c.code)
			switch name {
			case "beyond the log":
				require.Equal(t, []any{1.0, float64(head)}, pick(details, "first_seq", "last_seq"))
			case "too many events":
				require.Equal(t, []any{10.0, 10.0}, pick(details, "max_events", "suggested_end_seq"))
			}
		})
	}
	require.Equal(t, head, g.head(t), "what was not made is no event")
}

// awaitCopy waits until the readable copy, which is written behind the answers,
// has every event.
func (g *testGate) awaitCopy(t testing.TB) {
	t.Helper()
	last := fmt.Sprintf(`"seq":%d,`, g.head(t))
	require.Eventually(t, func() bool {
		text, err := os.ReadFile(g.file("audit.log"))
		return err == nil && bytes.Contains(text, []byte(last)) && bytes.HasSuffix(text, []byte("\n"))
	}, startPatience, pollEvery)
}

// rechained is a readable copy of the log of which somebody took ana out.
func rechained(t *testing.T, g *testGate, copied []byte) (text []byte) {
	t.Helper()
	set, err := frame.Discover(t.Context(), frame.OS{}, g.file("audit.wal"))
	require.NoError(t, err)
	h, err := set.Genesis()
	require.NoError(t, errors.Join(err, set.Close()))
	before := h.Hash
	for line := range bytes.Lines(copied) {
		e, err := event.ParseJSON(bytes.TrimSuffix(bytes.ReplaceAll(line, []byte(`"ana"`), []byte(`"eve"`)), []byte("\n")))
		require.NoError(t, err)
		record, err := event.Encode(nil, &e.Draft)
		require.NoError(t, err)
		e.PreviousHash, e.Hash = before, frame.EventHash(e.Seq, before, record)
		before = e.Hash
		text = append(event.AppendJSON(text, &e), '\n')
	}
	require.NotEqual(t, string(copied), string(text))
	return text
}

func TestFilesOfTheServiceAreVerified(t *testing.T) {
	t.Parallel()
	other := t.TempDir()
	g := startShop(t, "GATE_AUDIT_VERIFY_DIRS="+other)
	g.busy(t)
	g.awaitCopy(t)
	verify := func(file string) reply { return g.post(t, "/audit/verify", `{"audit_file":`+strconv.Quote(file)+`}`) }
	for file, source := range map[string]string{g.file("audit.wal"): "wal", g.file("audit.log"): "jsonl"} {
		r := verify(file)
		require.Equal(t, http.StatusOK, r.status, "%s", r.body)
		require.Equal(t, []any{"ok", source}, pick(r.json(t), "status", "source"), "%s", r.body)
	}
	log, err := os.ReadFile(g.file("audit.log"))
	require.NoError(t, err)
	spoiled := filepath.Join(other, "copy.log")
	require.NoError(t, os.WriteFile(spoiled, bytes.Replace(log, []byte(`"BLOCK"`), []byte(`"ALLOW"`), 1), 0o600))
	require.Equal(t, "corruption_detected", verify(spoiled).text(t, "status"))
	require.NoError(t, os.WriteFile(g.file("audit.log"), rechained(t, g, log), 0o600))
	r := verify(g.file("audit.log"))
	require.Equal(t, "corruption_detected", r.text(t, "status"))
	require.Contains(t, string(r.body), "history_rewritten", "its own copy was written anew, and every line follows from the one before")

	// Other files may lie beside the log: what they hold is for nobody who can ask.
	for name, text := range map[string]string{"a": "{\n\"password\": \"hunter2\",\n\"key\": \"hunter2\"\n}\n", "b": "{\"key\":\"hunter2\"}\n", "c": "{\"seq\":1,\"event_id\":\"hunter2\"}\n",
		"d": string(bytes.Replace(log, []byte(`"event_type":"`), []byte(`"event_type":hunter2"`), 1)), "e": "hunter2\n", "f": "{\"seq\":hunter2"} {
		beside := filepath.Join(other, name+".json")
		require.NoError(t, os.WriteFile(beside, []byte(text), 0o600))
		r := verify(beside)
		require.Equal(t, http.StatusOK, r.status, "%s", r.body)
		require.NotContains(t, string(r.body), "hunter", "%s", text)
		require.NotContains(t, string(r.body), "passw", "%s", text)
	}

	for _, size := range []int{10, 4096} { // nor may they be tried
		beside := filepath.Join(other, "pin.env")
		require.NoError(t, os.WriteFile(beside, append(bytes.Repeat([]byte("#"), size), "PIN=4719"...), 0o600))
		r := verify(beside)
		require.Equal(t, http.StatusOK, r.status, "%s", r.body)
		require.Equal(t, "corruption_detected", r.text(t, "status"))
		require.Contains(t, string(r.body), `"sha256":""`)
		require.NotContains(t, string(r.body), "of 4096")
		require.NotContains(t, string(r.body), `"length":8`)
	}

	secret := filepath.Join(other, "service.json")
	for _, text := range []string{"{\n\"token\": \"hunter2-and-more\",\n\"n\": 1}\n", `{"token": "hunter2-and-more"}`} {
		require.NoError(t, os.WriteFile(secret, []byte(text), 0o600))
		r := g.do(t, http.MethodPost, "/audit/verify", fmt.Appendf(nil, `{"audit_file":%q}`, secret), operatorTestHeader)
		require.Equal(t, http.StatusOK, r.status, "%s", r.body)
		require.NotEqual(t, "ok", r.text(t, "status"))
		require.Contains(t, string(r.body), `"end_offset":0`)
		require.Contains(t, string(r.body), `"faults_total":1`)
		require.NotRegexp(t, `"(offset|length)":[1-9]`, string(r.body), "how long its lines are is nobody's business")
	}

	require.NoError(t, os.Symlink("/etc/passwd", filepath.Join(other, "link")))
	require.NoError(t, os.Mkdir(filepath.Join(other, "folder"), 0o700))
	bundle := filepath.Join(other, "bundle.json") // no copy of a log, and not damaged either
	require.NoError(t, os.WriteFile(bundle, g.post(t, "/audit/evidence", `{"start_seq":1,"end_seq":2}`).body, 0o600))
	for file, code := range map[string]string{
		"/etc/passwd": "validation_failed", filepath.Join(other, "link"): "validation_failed", filepath.Join(other, "folder"): "validation_failed",
		bundle: "validation_failed", filepath.Join(other, "..", "x"): "validation_failed", filepath.Join(other, "none"): "not_found", "": "validation_failed",
	} {
		r := verify(file)
		require.Equal(t, code, r.text(t, "error_code"), "%q: %s", file, r.body)
		require.NotContains(t, string(r.body), "root:")
	}
}

// stream follows the log; lines are those of server-sent events.
func (g *testGate) stream(t testing.TB, path string, headers ...string) (next func() (id, kind string)) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, g.base+path, nil)
	require.NoError(t, err)
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		request.Header.Set(name, value)
	}
	response, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	t.Cleanup(func() { response.Body.Close() })
	require.Equal(t, http.StatusOK, response.StatusCode)
	require.Equal(t, "text/event-stream", response.Header.Get("Content-Type"))
	lines := bufio.NewScanner(response.Body)
	return func() (id, kind string) {
		for lines.Scan() {
			switch field, value, _ := strings.Cut(lines.Text(), ": "); field {
			case "id":
				id = value
			case "event":
				kind = value
			case "data":
				seq, _, _ := strings.Cut(id, ".") // under /v1 a place in the event follows
				require.Contains(t, value, `"seq":`+seq+`,`)
				return id, kind
			}
		}
		return "", "" // the stream ended
	}
}

func TestTheLogIsFollowedAndTakenUpAgain(t *testing.T) {
	t.Parallel()
	g := startShop(t)
	g.busy(t)
	head := g.head(t)
	all := g.stream(t, "/audit/stream?from_seq=1")
	for seq := uint64(1); seq <= head; seq++ {
		id, _ := all()
		require.Equal(t, strconv.FormatUint(seq, 10), id)
	}
	again := g.stream(t, "/audit/stream", "Last-Event-ID: 3")
	id, _ := again()
	require.Equal(t, "4", id)
	repeated := g.stream(t, "/audit/stream?from_seq=1", "Last-Event-ID: 3") // as an EventSource comes again
	id, _ = repeated()
	require.Equal(t, "4", id)
	live := g.stream(t, "/audit/stream")
	g.query(t, ask("SELECT 1"))
	id, kind := live()
	require.Equal(t, []string{strconv.FormatUint(head+1, 10), "request_received"}, []string{id, kind})
	for _, bad := range []string{"/audit/stream?from_seq=0", "/audit/stream?from_seq=x"} {
		requireFault(t, g.get(t, bad), http.StatusBadRequest, "validation_failed")
	}
	requireFault(t, g.do(t, http.MethodGet, "/audit/stream?from_seq=0", nil, "Last-Event-ID: 3"), http.StatusBadRequest, "validation_failed")
	g.end(t) // followers do not hold up the end
	for id != "" {
		id, _ = live()
	}
}

// The numbers of another log say nothing of this one's events: whoever waited behind them
// would miss those that come up to there.
func TestNobodyWaitsBehindTheEndOfTheLog(t *testing.T) {
	w := startAgents(t)
	w.register(t, "bot")
	head := w.head(t)
	key := w.projectKey()
	at := func(seq uint64) string { return strconv.FormatUint(seq, 10) }
	for _, beyond := range []uint64{1000, 1 << 62} { // the usage is written by the clock
		first, last := "from_seq="+at(head+beyond), "Last-Event-ID: "+at(head+beyond)
		for name, r := range map[string]reply{
			"a stream by its id":                  w.answered(t, "/audit/stream", last),
			"one that begins with the log":        w.answered(t, "/audit/stream?from_seq=1", last),
			"a stream by its first event":         w.answered(t, "/audit/stream?"+first),
			"a poll":                              w.answered(t, "/audit?order=asc&"+first),
			"a range":                             w.answered(t, "/audit?"+first+"&to_seq="+at(head+beyond+1)),
			"a stream under /v1 by its id":        w.answered(t, "/v1/events", follows, key, last+".0"),
			"a stream under /v1 by its first one": w.answered(t, "/v1/events?"+first, follows, key),
			"one under /v1 by both":               w.answered(t, "/v1/events?"+first, follows, key, "Last-Event-ID: 1.0"),
			"a poll under /v1":                    w.answered(t, "/v1/events?order=asc&"+first, key),
			"a replay":                            w.operate(t, "/policy/diff", map[string]any{"base": "active", "target": "active", "replay": map[string]any{"from_seq": head + beyond}}),
			"what was reviewed": w.operate(t, "/policy/activate", map[string]any{"policy_version": "x@1.0.0", "expected_hash": strings.Repeat("0", 64), "expected_active_hash": strings.Repeat("0", 64), "reason": "r",
				"impact": map[string]any{"from_seq": 1, "to_seq": head + beyond, "impact_hash": strings.Repeat("0", 64)}}),
		} {
			require.Equal(t, http.StatusBadRequest, r.status, name)
			require.Equal(t, "validation_failed", r.text(t, "error_code"), name)
			require.Contains(t, string(r.body), "another log", name)
			require.GreaterOrEqual(t, r.json(t)["details"].(map[string]any)["last_seq"], float64(head), name)
		}
	}

	head = w.head(t)
	const agents = "event_type=agent_registered"
	require.Empty(t, w.answered(t, "/audit?order=asc&"+agents+"&from_seq="+at(head+1)).json(t)["items"], "a poller that has all that there is")
	require.Empty(t, w.answered(t, "/v1/events?order=asc&"+agents+"&from_seq="+at(head+1), key).json(t)["items"])
	streams := []func() (id, kind string){
		w.stream(t, "/audit/stream", "Last-Event-ID: "+at(head)),
		w.stream(t, "/audit/stream?from_seq="+at(head+1)),
		w.stream(t, "/audit/stream?from_seq="+at(head+1000), "Last-Event-ID: "+at(head)),
		w.stream(t, "/v1/events", follows, key, "Last-Event-ID: "+at(head)+".0"),
		w.stream(t, "/v1/events?from_seq="+at(head+1), follows, key),
	}
	w.register(t, "other")
	for i, next := range streams {
		_, kind := next()
		for kind == string(event.TypeUsageRecorded) {
			_, kind = next()
		}
		require.Equal(t, "agent_registered", kind, i)
	}
}

// answered is the answer to a GET, of a stream that begins nothing but its status.
func (g *testGate) answered(t *testing.T, path string, headers ...string) (r reply) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, g.base+path, nil)
	require.NoError(t, err)
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		request.Header.Set(name, value)
	}
	response, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	defer response.Body.Close()
	if r.status = response.StatusCode; response.Header.Get("Content-Type") != "text/event-stream" {
		r.body, err = io.ReadAll(response.Body)
		require.NoError(t, err)
	}
	return r
}

func TestABundleIsExportedAndCheckedOnTheCommandLine(t *testing.T) {
	t.Parallel()
	g := startShop(t)
	g.busy(t)
	head := g.head(t)
	file := filepath.Join(t.TempDir(), "bundle.json")
	code, out, errs := g.command(t, "evidence", "export", file, "--from-seq", "2", "--to-seq", strconv.FormatUint(head, 10), "--reason", "audit")
	require.Zero(t, code, errs)
	require.Contains(t, out, "Wrote events 2 to ")
	code, out, errs = g.command(t, "evidence", "verify", file)
	require.Zero(t, code, "%s%s", out, errs)

	code, _, errs = g.command(t, "evidence", "export", file)
	require.NotZero(t, code)
	require.Contains(t, errs, "exists")
	code, _, errs = g.command(t, "evidence", "export", file+"2", "--from-seq", "5", "--to-seq", "1000000")
	require.NotZero(t, code)
	require.Contains(t, errs, "which has 1 to")
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(file, bytes.Replace(text, []byte(`"ALLOW"`), []byte(`"BLOCK"`), 1), 0o600))
	code, out, _ = g.command(t, "evidence", "verify", file, "--json")
	require.Equal(t, exitFailed, code)
	require.Contains(t, out, `"status":"corruption_detected"`)
	require.NoError(t, os.WriteFile(file, text[:len(text)/2], 0o600))
	code, _, _ = g.command(t, "evidence", "verify", file)
	require.Equal(t, exitPartial, code)
	left, err := os.ReadDir(filepath.Dir(file))
	require.NoError(t, err)
	require.Len(t, left, 1, "nothing half done stays")
}

// What is shown of an event and how long it is tell how long that is which is
// withheld, and of a plan estimate or a count the value itself.
func TestHowLongEventsAreIsForOperators(t *testing.T) {
	t.Parallel()
	other := t.TempDir()
	g := startShop(t, "GATE_AUDIT_VERIFY_DIRS="+other)
	require.Equal(t, http.StatusForbidden, g.query(t, ask("DELETE FROM orders")).status)
	g.awaitCopy(t)
	log, err := os.ReadFile(g.file("audit.wal"))
	require.NoError(t, err)
	readable, err := os.ReadFile(g.file("audit.log"))
	require.NoError(t, err)
	torn, spoiled, lines := filepath.Join(other, "torn.wal"), filepath.Join(other, "spoiled.wal"), filepath.Join(other, "copy.log")
	require.NoError(t, os.WriteFile(torn, log[:len(log)-8], 0o600))
	require.NoError(t, os.WriteFile(spoiled, bytes.Replace(log, []byte("DELETE FROM orders"), []byte("DELETE FROM owners"), 1), 0o600))
	require.NoError(t, os.WriteFile(lines, bytes.Replace(readable, []byte("DELETE FROM orders"), []byte("DELETE FROM owners"), 1), 0o600))
	told := func(r reply) bool {
		require.Equal(t, http.StatusOK, r.status, "%s", r.body)
		return regexp.MustCompile(`"(end_offset|offset|length)":[1-9]`).Match(r.body)
	}
	for _, file := range []string{g.file("audit.wal"), g.file("audit.log"), torn, spoiled, lines} {
		body := fmt.Appendf(nil, `{"audit_file":%q}`, file)
		require.False(t, told(g.do(t, http.MethodPost, "/audit/verify", body)), file)
		require.True(t, told(g.do(t, http.MethodPost, "/audit/verify", body, operatorTestHeader)), file)
	}
	require.False(t, told(g.get(t, "/evidence/verify")))
	require.True(t, told(g.do(t, http.MethodGet, "/evidence/verify", nil, operatorTestHeader)))
}

// A log that is damaged in one segment vouches for nothing in those behind it, which can
// still be read.
func TestACopyIsHeldAgainstNothingBehindTheDamage(t *testing.T) {
	t.Parallel()
	d := newGateDir(t, nil)
	d.execute(t, shopTables)
	g := startGate(t, d, inSegments)
	for len(sealed(t, d)) < 3 {
		g.query(t, ask("SELECT id FROM orders WHERE id = 1"))
	}
	g.awaitCopy(t)
	g.end(t)
	flipByte(t, sealed(t, d)[1])
	g = startGate(t, d, inSegments)
	defer g.endDamaged(t)
	copied := g.post(t, "/audit/verify", `{"audit_file":`+strconv.Quote(g.file("audit.log"))+`}`)
	require.Equal(t, "partial", copied.text(t, "status"), "%s", copied.body)
}

// sealed are the files of the sealed segments, in order.
func sealed(t *testing.T, d gateDir) []string {
	names, err := filepath.Glob(d.file("audit.wal.segments") + "/*.wal")
	require.NoError(t, err)
	return names
}
