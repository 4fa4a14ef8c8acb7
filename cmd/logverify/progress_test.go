package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestShortWorkShowsNoProgress(t *testing.T) {
	var out bytes.Buffer
	p := newProgress(&out)
	p.step(1, 10)
	require.NoError(t, p.done())
	assert.Empty(t, out.String())
}

func TestLongWorkPrintsLinesWhereThereIsNoTerminal(t *testing.T) {
	var out bytes.Buffer
	p := newProgress(&out)
	p.started = p.started.Add(-time.Minute)
	p.step(5, 10)
	p.step(6, 10)
	require.NoError(t, p.done())
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	require.Len(t, lines, 1, "one line, and the next only after a while")
	var got map[string]any
	require.NoError(t, json.Unmarshal([]byte(lines[0]), &got))
	assert.Equal(t, map[string]any{"progress": "verify", "done_bytes": 5.0, "total_bytes": 10.0}, got)
}

func TestLongWorkDrawsABarOnATerminal(t *testing.T) {
	var out bytes.Buffer
	p := newProgress(&out)
	p.started, p.tty = p.started.Add(-time.Minute), true
	p.step(5<<20, 10<<20)
	require.NoError(t, p.done())
	assert.Contains(t, out.String(), "verifying")
	assert.NotContains(t, out.String(), "{")
}

func TestProgressThatCanNotBeShownIsReported(t *testing.T) {
	p := newProgress(fullDisk{})
	p.started = p.started.Add(-time.Minute)
	p.step(5, 10)
	assert.Error(t, p.done())
}
