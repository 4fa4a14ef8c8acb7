package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"writegate/eventlog/frame"
)

// bundleEventsVariable is how many events the bundle has; `make verifiers` sets it.
const bundleEventsVariable = "BUNDLE_EVENTS"

// bundleGrowth is how much more memory than before an export may take, in MiB,
// however many events there are.
const bundleGrowth = 64

// TestARunningGateExportsALargeBundleInLittleMemory has a gate export its log from
// its own tree, and both verifiers check the file, each a process of its own that
// has nothing but the file and the public key.
// Not parallel: it reads the peak of this process's memory.
func TestARunningGateExportsALargeBundleInLittleMemory(t *testing.T) {
	events := 2_000
	if text := os.Getenv(bundleEventsVariable); text != "" {
		var err error
		events, err = strconv.Atoi(text)
		require.NoError(t, err)
	}
	g := startShop(t, "GATE_EVIDENCE_MAX_BYTES=1000000000")
	g.fill(t, events, 0)
	outside := t.TempDir()
	bundle, key := filepath.Join(outside, "bundle.json"), filepath.Join(outside, "key.pem")
	pem, err := os.ReadFile(g.signing.public)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(key, pem, 0o600))

	before := resident(t)
	resetPeak(t)
	began := time.Now()
	size := g.download(t, bundle, events)
	took, grown := time.Since(began), peak(t)-before
	t.Logf("a bundle of %d events and %d MiB in %s, %d MiB more than the %d MiB before", events, size>>20, took.Round(time.Millisecond), grown, before)
	if !raceDetector { // which keeps much beside each byte
		require.LessOrEqual(t, grown, bundleGrowth)
	}

	verifier := filepath.Join(t.TempDir(), "logverify")
	buildVerifier(t, verifier)
	source, err := filepath.Abs("../../fixtures/secondverifier/verify.py")
	require.NoError(t, err)
	for name, cmd := range map[string]*exec.Cmd{
		"logverify":           exec.Command(verifier, "bundle", bundle, "--key", key, "--json"),
		"the second verifier": exec.Command("python3", "-B", source, "bundle", bundle, "--key", key),
	} {
		began := time.Now()
		cmd.Dir, cmd.Env = outside, []string{"PATH=" + os.Getenv("PATH")}
		out, err := cmd.Output()
		require.NoError(t, err, "%s: %s", name, out)
		var told struct{ Status frame.Status }
		require.NoError(t, json.Unmarshal(out, &told))
		require.Equal(t, frame.OK, told.Status, "%s: %s", name, out)
		t.Logf("%s: ok in %s", name, time.Since(began).Round(time.Millisecond))
	}
}

// download asks a gate for its first events as a bundle, and writes what comes as
// it comes.
func (g *testGate) download(t *testing.T, path string, events int) (size int64) {
	t.Helper()
	body := fmt.Sprintf(`{"start_seq":1,"end_seq":%d,"reason":"all of it"}`, events)
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, g.base+"/audit/evidence", strings.NewReader(body))
	require.NoError(t, err)
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("X-GATE-Operator-Token", operatorTestToken)
	response, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	defer response.Body.Close()
	require.Equal(t, http.StatusOK, response.StatusCode)
	f, err := os.Create(path)
	require.NoError(t, err)
	size, err = io.Copy(f, response.Body)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	return size
}

// resetPeak begins to count the peak of resident memory anew (proc(5), clear_refs).
func resetPeak(t *testing.T) {
	t.Helper()
	require.NoError(t, os.WriteFile("/proc/self/clear_refs", []byte("5"), 0))
}

// peak is the most memory that this process had since resetPeak, in MiB.
func peak(t *testing.T) int {
	t.Helper()
	text, err := os.ReadFile("/proc/self/status")
	require.NoError(t, err)
	kib, err := strconv.Atoi(string(regexp.MustCompile(`VmHWM:\s+(\d+)`).FindSubmatch(text)[1]))
	require.NoError(t, err)
	return kib >> 10
}
