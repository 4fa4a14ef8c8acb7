package terminal

import (
	"bytes"
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// fullDisk refuses what is written to it.
type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, os.ErrClosed }

func TestShortWorkShowsNoProgress(t *testing.T) {
	var out bytes.Buffer
	p := NewProgress(&out, "verifying", true)
	p.Step(1, 10)
	require.NoError(t, p.Done())
	assert.Empty(t, out.String())
}

func TestLongWorkPrintsLinesWhereThereIsNoTerminal(t *testing.T) {
	var out bytes.Buffer
	p := NewProgress(&out, "verifying", true)
	p.started = p.started.Add(-time.Minute)
	p.Step(5, 10)
	p.Step(6, 10)
	require.NoError(t, p.Done())
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	require.Len(t, lines, 1, "one line, and the next only after a while")
	var got map[string]any
	require.NoError(t, json.Unmarshal([]byte(lines[0]), &got))
	assert.Equal(t, map[string]any{"progress": "verifying", "done": 5.0, "total": 10.0}, got)
}

func TestLongWorkDrawsABarOnATerminal(t *testing.T) {
	var out bytes.Buffer
	p := NewProgress(&out, "verifying", true)
	p.started, p.tty = p.started.Add(-time.Minute), true
	p.Step(5<<20, 10<<20)
	require.NoError(t, p.Done())
	assert.Contains(t, out.String(), "verifying")
	assert.NotContains(t, out.String(), "{")
}

func TestProgressThatCanNotBeShownIsReported(t *testing.T) {
	p := NewProgress(fullDisk{}, "verifying", true)
	p.started = p.started.Add(-time.Minute)
	p.Step(5, 10)
	assert.Error(t, p.Done())
}
