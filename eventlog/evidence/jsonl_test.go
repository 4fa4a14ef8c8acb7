package evidence_test

import (
	"bytes"
	"context"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"writegate/eventlog/evidence"
	"writegate/eventlog/evidence/evidencetest"
	"writegate/eventlog/frame"
)

func verifyLines(t testing.TB, b []byte, h *frame.Header) frame.Report {
	r, err := evidence.VerifyJSONL(context.Background(), bytes.NewReader(b), evidence.Options{Path: "audit.log", Header: h})
	require.NoError(t, err)
	return r
}

func TestACopyFromTheBeginningIsOkAndSaysWhatItCanNotSay(t *testing.T) {
	l := evidencetest.New(9)
	h := l.Header()
	r := verifyLines(t, l.JSONL(1), &h)
	require.Equal(t, frame.OK, r.Status, r.Faults)
	assert.Equal(t, []uint64{1, 9, 9, 9}, []uint64{r.FirstSeq, r.LastSeq, r.EventCount, r.VerifiedTo})
	assert.Equal(t, frame.Pass, r.Check(frame.CheckStart).Status)
	assert.NotContains(t, strings.Join(r.NotExcluded, ";"), "header of a log")

	r = verifyLines(t, l.JSONL(1), nil)
	require.Equal(t, frame.OK, r.Status, r.Faults)
	assert.Equal(t, frame.NotRun, r.Check(frame.CheckStart).Status)
	assert.Contains(t, strings.Join(r.NotExcluded, ";"), "the beginning was not compared with the header of a log")
}

func TestACopyFromALaterEventIsAtBestPartial(t *testing.T) {
	l := evidencetest.New(9)
	h := l.Header()
	for first := uint64(2); first <= 9; first++ {
		r := verifyLines(t, l.JSONL(first), &h)
		assert.Equal(t, frame.Partial, r.Status)
		assert.Equal(t, []frame.Kind{frame.RangeLimited}, kinds(r))
		assert.Equal(t, first, r.FirstSeq)
		assert.Equal(t, frame.NotRun, r.Check(frame.CheckStart).Status)
	}
}

func TestACopyOfAnotherLogDoesNotLinkToTheHeader(t *testing.T) {
	h := evidencetest.NewNamed("gate.elsewhere", 1).Header()
	r := verifyLines(t, evidencetest.New(3).JSONL(1), &h)
	assert.Equal(t, frame.Corruption, r.Status)
	assert.Equal(t, []frame.Kind{frame.BadChainStart}, kinds(r))
}

// Row 37 of the fault list, and what else editors and scripts do to such files.
func TestDamagedLinesAreFoundAndTheOthersStillJudged(t *testing.T) {
	l := evidencetest.New(6)
	good := string(l.JSONL(1))
	lines := strings.SplitAfter(strings.TrimSuffix(good, "\n"), "\n")
	lines[5] += "\n"
	join := func(parts ...string) []byte { return []byte(strings.Join(parts, "")) }
	edited := func(i int, old, new string) []byte {
		require.Contains(t, lines[i], old)
		return []byte(strings.Replace(good, lines[i], strings.Replace(lines[i], old, new, 1), 1))
	}
	elsewhere := strings.SplitAfter(string(evidencetest.NewNamed("gate.elsewhere", 3).JSONL(1)), "\n")
	for _, c := range []struct {
		name  string
		lines []byte
		kinds []frame.Kind
		seq   uint64
		count uint64
	}{
		{"a value edited", edited(2, `"actor":"ana"`, `"actor":"bob"`), []frame.Kind{frame.BadEventHash}, 3, 6},
		{"a line removed", join(lines[0], lines[1], lines[3], lines[4], lines[5]), []frame.Kind{frame.BadSequence}, 4, 5},
		{"the first line removed", join(lines[1:]...), []frame.Kind{frame.RangeLimited}, 2, 5},
		{"a line doubled", join(lines[0], lines[1], lines[1], lines[2], lines[3], lines[4], lines[5]), []frame.Kind{frame.BadSequence}, 2, 7},
		{"two lines swapped", join(lines[0], lines[2], lines[1], lines[3], lines[4], lines[5]), []frame.Kind{frame.BadSequence}, 3, 6},
		{"a line of another log", join(lines[0], lines[1], elsewhere[2], lines[3], lines[4], lines[5]), []frame.Kind{frame.BadLinkage}, 3, 6},
		{"CR LF", []byte(strings.ReplaceAll(good, "\n", "\r\n")), []frame.Kind{evidence.BadForm}, 0, 0},
		{"a doubled key", edited(3, `"seq":4`, `"seq":4,"seq":4`), []frame.Kind{evidence.BadForm}, 0, 5},
		{"another order of keys", edited(3, `"tenant":"t1","env":"prod"`, `"env":"prod","tenant":"t1"`), []frame.Kind{evidence.BadForm}, 0, 5},
		{"a space", edited(3, `"seq":4`, `"seq": 4`), []frame.Kind{evidence.BadForm}, 0, 5},
		{"an escape written otherwise", edited(3, `é`, `\u00e9`), []frame.Kind{evidence.BadForm}, 0, 5},
		{"an empty line", join(lines[0], "\n", lines[1], lines[2], lines[3], lines[4], lines[5]), []frame.Kind{evidence.BadForm}, 0, 6},
		{"a last line without an end", []byte(strings.TrimSuffix(good, "\n")), []frame.Kind{evidence.TornLine}, 0, 5},
		{"half a last line", []byte(good[:len(good)-40]), []frame.Kind{evidence.TornLine}, 0, 5},
		{"nothing", nil, []frame.Kind{frame.MissingLog}, 0, 0},
		{"one torn line", []byte(`{"seq":1`), []frame.Kind{evidence.TornLine}, 0, 0},
		{"no events but lines", []byte("hello\n"), []frame.Kind{evidence.BadForm}, 0, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := verifyLines(t, c.lines, nil)
			want := frame.Corruption
			if k := c.kinds[0]; k == evidence.TornLine || k == frame.MissingLog || k == frame.RangeLimited {
				want = frame.Partial
			}
			assert.Equal(t, want, r.Status)
			assert.Equal(t, c.kinds, kinds(r), r.Faults)
			assert.Equal(t, c.seq, r.Faults[0].Seq)
			assert.Equal(t, c.count, r.EventCount)
		})
	}
}

func TestALineLongerThanAnyEventIsAFaultAndNoMemory(t *testing.T) {
	l := evidencetest.New(2)
	long := io.LimitReader(letters{}, evidence.MaxLine*3)
	in := io.MultiReader(bytes.NewReader(l.JSONL(1)), long, strings.NewReader("\n"))
	r, err := evidence.VerifyJSONL(context.Background(), in, evidence.Options{})
	require.NoError(t, err)
	assert.Equal(t, []frame.Kind{evidence.BadForm}, kinds(r))
	assert.Contains(t, r.Faults[0].Detail, "more than any event has")
	assert.EqualValues(t, evidence.MaxLine*3+1, r.Faults[0].Length)
	assert.EqualValues(t, 2, r.EventCount)
}

// A line whose end does not come is given up, and what was found before it stands.
func TestALineWithoutEndIsGivenUp(t *testing.T) {
	l := evidencetest.New(3)
	last := l.JSONL(3)
	first := bytes.TrimSuffix(l.JSONL(1), last)
	for _, c := range []struct {
		before  string
		letters int64
		kinds   []frame.Kind
		count   uint64
	}{
		{"", evidence.MaxSkipped - 1, []frame.Kind{evidence.BadForm}, 3},
		{"", evidence.MaxSkipped, []frame.Kind{evidence.TornLine}, 2},
		{"no event\n", 3 * evidence.MaxSkipped, []frame.Kind{evidence.BadForm, evidence.TornLine}, 2},
	} {
		in := io.MultiReader(strings.NewReader(c.before), bytes.NewReader(first), io.LimitReader(letters{}, c.letters), strings.NewReader("\n"), bytes.NewReader(last))
		r, err := evidence.VerifyJSONL(context.Background(), in, evidence.Options{})
		require.NoError(t, err)
		require.Equal(t, c.kinds, kinds(r))
		require.EqualValues(t, c.count, r.EventCount)
	}
}

// letters is an endless line.
type letters struct{}

func (letters) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'x'
	}
	return len(p), nil
}

func TestRandomEditsOfACopyAreNeverOkWithoutALossAtTheEnd(t *testing.T) {
	l := evidencetest.New(6)
	good, h := l.JSONL(1), l.Header()
	rapid.Check(t, func(t *rapid.T) {
		from := rapid.IntRange(0, len(good)-1).Draw(t, "from")
		to := rapid.IntRange(from, min(from+40, len(good))).Draw(t, "to")
		put := rapid.SliceOfN(rapid.Byte(), 0, 12).Draw(t, "put")
		b := append(append(bytes.Clone(good[:from]), put...), good[to:]...)
		if bytes.Equal(b, good) || bytes.HasPrefix(good, b) {
			return
		}
		r, err := evidence.VerifyJSONL(context.Background(), bytes.NewReader(b), evidence.Options{Header: &h})
		if err != nil || r.Status == frame.OK {
			t.Fatalf("%v %v", r.Status, err)
		}
	})
}

func TestErrorsOfAFileAreNoVerdict(t *testing.T) {
	in := io.MultiReader(bytes.NewReader(evidencetest.New(2).JSONL(1)), iotest.ErrReader(io.ErrClosedPipe))
	_, err := evidence.VerifyJSONL(context.Background(), in, evidence.Options{})
	assert.ErrorIs(t, err, io.ErrClosedPipe)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err = evidence.VerifyJSONL(ctx, bytes.NewReader(evidencetest.New(2).JSONL(1)), evidence.Options{})
	assert.ErrorIs(t, err, context.Canceled)
}
