package classify

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// inProcessText is the largest text of a shape that is parsed in process.
func (s shape) inProcessText() string {
	for size := inProcessBytes; ; size = size * 7 / 8 {
		sql := s.text(size)
		if scanned, f := guard(sql, defaultMaxSQL); f != nil || scanned.Depth <= inProcessDepth {
			return sql
		}
	}
}

// playShortStack classifies, on many threads at once, the deepest texts that
// are parsed in process, and prints what became of them.
func playShortStack([]string) {
	c, err := New(Config{})
	if err != nil {
		return
	}
	defer c.Close()
	byCPUAlone(c)
	var group sync.WaitGroup
	for _, s := range hostileShapes {
		group.Go(func() { _, _ = c.Classify(context.Background(), s.inProcessText()) })
	}
	group.Wait()
	_ = json.NewEncoder(os.Stdout).Encode(c.Stats())
}

// runUnderStack plays playShortStack in a process with another stack limit.
func runUnderStack(t *testing.T, kilobytes string) ParserStats {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command("sh", "-c", `ulimit -s "$0" && exec "$@"`, kilobytes, self, roleArgument+"short stack")
	var out, errors bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errors
	require.NoError(t, cmd.Run(), cutAt(errors.String(), 2000))
	var stats ParserStats
	require.NoError(t, json.Unmarshal(out.Bytes(), &stats), out.String())
	return stats
}

func TestInProcessTextsFitIntoTheSmallestStackThatIsTaken(t *testing.T) {
	for _, limit := range []string{"2048", "unlimited"} { // unlimited gives threads 2 MiB
		stats := runUnderStack(t, limit)
		require.NotZero(t, stats.InProcess)
		require.Zero(t, stats.Child, limit)
		require.EqualValues(t, len(hostileShapes), stats.InProcess+stats.Refused)
	}
}

func TestWithSmallerStacksNothingIsParsedInProcess(t *testing.T) {
	stats := runUnderStack(t, "1024")
	require.Zero(t, stats.InProcess)
	require.EqualValues(t, len(hostileShapes), stats.Child+stats.Refused)
	require.Zero(t, stats.Restarts, "the hard limit lowers the child's stack and so the depth it takes")
}

func TestTheChildTakesAsMuchDepthAsItsStackBears(t *testing.T) {
	require.Equal(t, 1024, deepestFor(1<<20))
	require.Equal(t, 8192, deepestFor(8<<20))
	require.Equal(t, largestSQLBytes, deepestFor(64<<20), "no text within the limits is refused for its bound")
}
