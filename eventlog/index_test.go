package eventlog

import (
	"encoding/hex"
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"writegate/eventlog/frame"
)

const testIndex = "/log/audit_index_v1.json"

func TestTheIndexFileNamesEveryThousandTwentyFourthEvent(t *testing.T) {
	mem := newMem(t)
	o := memOptions(mem)
	o.IndexPath = testIndex
	l, _ := mustOpen(t, o)
	for range 3 {
		mustAppend(t, l, numbered("n", 1000)...)
	}
	id := l.LogID()
	mustClose(t, l)
	for range 2 { // a second run writes the same points from what it read
		b, err := mem.ReadFile(testIndex)
		require.NoError(t, err)
		var file indexFile
		require.NoError(t, json.Unmarshal(b, &file))
		require.Equal(t, "gate.audit_index.v1", file.Format)
		require.Equal(t, hex.EncodeToString(id[:]), file.LogID)
		require.Equal(t, []indexedSegment{{File: "audit.wal", FirstSeq: 1, LastSeq: 3000}}, file.Segments)
		require.Len(t, file.Points, 3)
		f, err := mem.Open(testLog, frame.ReadOnly)
		require.NoError(t, err)
		for i, p := range file.Points {
			at, _, err := frame.ReadFrameAt(f, p[2], 1<<40)
			require.NoError(t, err)
			require.EqualValues(t, 1+1024*i, at.Seq)
			require.EqualValues(t, p[0], at.Seq)
		}
		require.NoError(t, mem.Remove(testIndex))
		l, _ = mustOpen(t, o)
		mustClose(t, l)
	}
}

func TestAnIndexFileIsNeverBelieved(t *testing.T) {
	mem := newMem(t)
	o := memOptions(mem)
	o.IndexPath = testIndex
	l, _ := mustOpen(t, o)
	for range 3 {
		mustAppend(t, l, numbered("n", 1000)...)
	}
	id := l.LogID()
	mustClose(t, l)
	lie, err := json.Marshal(indexFile{Format: indexFormat, LogID: hex.EncodeToString(id[:]), Points: [][3]int64{{1, 0, 9000}, {1025, 0, 4096}}})
	require.NoError(t, err)
	for _, b := range [][]byte{lie, nil, []byte("{"), make([]byte, 1000)} {
		require.NoError(t, mem.WriteFile(testIndex, b))
		l, _ := mustOpen(t, o)
		for _, seq := range []uint64{1, 2, 1024, 1025, 1026, 2999, 3000} {
			e, err := l.At(seq)
			require.NoError(t, err)
			require.Equal(t, seq, e.Seq)
		}
		mustClose(t, l)
	}
}

// A setting may name a file that somebody needs.
func TestAFileInThePlaceOfTheIndexIsKept(t *testing.T) {
	mem := newMem(t)
	o := memOptions(mem)
	o.IndexPath = testIndex
	require.NoError(t, mem.WriteFile(testIndex, []byte("precious\n")))
	l, _ := mustOpen(t, o)
	mustAppend(t, l, numbered("n", 10)...)
	mustClose(t, l)
	names, err := mem.List(filepath.Dir(testIndex))
	require.NoError(t, err)
	i := slices.IndexFunc(names, func(name string) bool { return strings.HasPrefix(name, filepath.Base(testIndex)+".disagrees-") })
	require.GreaterOrEqual(t, i, 0, names)
	kept, err := mem.ReadFile(filepath.Join(filepath.Dir(testIndex), names[i]))
	require.NoError(t, err)
	require.Equal(t, "precious\n", string(kept))
}
