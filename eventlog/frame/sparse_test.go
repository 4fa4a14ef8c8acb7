package frame_test

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"writegate/eventlog/frame"
)

// bounded is a file of which no more than so much may be read.
type bounded struct {
	frame.File
	left *atomic.Int64
}

var errReadOn = errors.New("more was read than the answer needs")

func (f bounded) Pread(b []byte, off int64) (int, error) {
	if f.left.Add(-int64(len(b))) < 0 {
		return 0, errReadOn
	}
	return f.File.Pread(b, off)
}

// blind is a file system that does not tell where its holes are.
type blind struct{ frame.File }

func (blind) NextData(off int64) int64 { return off }

// sparse makes a log's file of this length, with bytes at some offsets.
func sparse(t *testing.T, log []byte, size int64, marks ...int64) frame.File {
	t.Helper()
	path := filepath.Join(t.TempDir(), "audit.wal")
	require.NoError(t, os.WriteFile(path, log, 0o600))
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	require.NoError(t, err)
	require.NoError(t, f.Truncate(size))
	for _, at := range marks {
		_, err := f.WriteAt([]byte("x"), at)
		require.NoError(t, err)
	}
	require.NoError(t, f.Close())
	opened, err := frame.OS{}.Open(path, frame.ReadOnly)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, opened.Close()) })
	return opened
}

func sparseSet(f frame.File, size int64) frame.Set {
	return frame.Set{Path: "audit.wal", Active: frame.Segment{Name: "audit.wal", File: f, Size: size}}
}

func TestAHoleOfTerabytesIsNotRead(t *testing.T) {
	const size = 4 << 40
	s := threeBatches(t)
	read := func() frame.File {
		f := bounded{File: sparse(t, s.bytes, size), left: new(atomic.Int64)}
		f.left.Store(1 << 30)
		return f
	}
	r := verify(t, sparseSet(read(), size))
	require.Equal(t, frame.OK, r.Status, explain(r))
	require.Zero(t, r.Tail.Length)

	from, err := frame.Verify(context.Background(), sparseSet(read(), size), frame.Options{Workers: 1, From: r.LastSeq + 5})
	require.NoError(t, err)
	require.NotContains(t, explain(from), errReadOn.Error())

	n := 0
	for _, err := range frame.Scan(context.Background(), read(), frame.HeaderSize, size) {
		require.NoError(t, err)
		n++
	}
	require.Len(t, s.frames, n)
}

// A few bytes far apart cost what they are, not what lies between them: of a longer tail
// the sum is of its beginning.
func TestWhatLiesBetweenHolesIsNotRead(t *testing.T) {
	s := threeBatches(t)
	end := int64(len(s.bytes))
	var scattered []int64
	for i := range int64(2000) {
		scattered = append(scattered, 4<<30-1-i<<21)
	}
	slices.Reverse(scattered)
	for name, c := range map[string]struct {
		size  int64
		marks []int64
	}{
		"one byte behind a terabyte": {1 << 40, []int64{1<<40 - 1}},
		"2000 bytes in 4 gigabytes":  {4 << 30, scattered},
	} {
		f := bounded{File: sparse(t, s.bytes, c.size, c.marks...), left: new(atomic.Int64)}
		f.left.Store(1 << 30)
		r := verify(t, sparseSet(f, c.size))
		require.Equal(t, []frame.Kind{frame.TornTail}, kinds(r), "%s: %s", name, explain(r))
		require.Equal(t, []int64{end, c.size - end}, []int64{r.Tail.Offset, r.Tail.Length}, name)
		require.EqualValues(t, frame.MaxHashed, r.Tail.SHA256Bytes, name)
		begin := make([]byte, frame.MaxHashed)
		_, err := f.File.Pread(begin, end)
		require.NoError(t, err)
		require.Equal(t, fmt.Sprintf("%x", sha256.Sum256(begin)), r.Tail.SHA256, name)
	}
}

// Where the last byte lies behind holes, it is found as by reading.
func TestHolesChangeNoVerdict(t *testing.T) {
	const size = 160 << 20
	s := threeBatches(t)
	end := int64(len(s.bytes))
	for name, marks := range map[string][]int64{
		"nothing":             nil,
		"at once":             {end + 3},
		"before the holes":    {63 << 20},
		"in the first hole":   {120<<20 + 5},
		"between two holes":   {80 << 20, 150 << 20},
		"the last byte":       {size - 1},
		"near, and far again": {end + 9, 140<<20 - 1},
	} {
		t.Run(name, func(t *testing.T) {
			f := sparse(t, s.bytes, size, marks...)
			byReading, byHoles := verify(t, sparseSet(blind{f}, size)), verify(t, sparseSet(f, size))
			for _, r := range []*frame.Report{&byReading, &byHoles} {
				r.StartedAt, r.DurationMS = "", 0
			}
			want, err := json.Marshal(byReading)
			require.NoError(t, err)
			got, err := json.Marshal(byHoles)
			require.NoError(t, err)
			require.JSONEq(t, string(want), string(got))
			seen, err := frame.ScanTail(context.Background(), f, 0, end, size)
			require.NoError(t, err)
			read, err := frame.ScanTail(context.Background(), blind{f}, 0, end, size)
			require.NoError(t, err)
			require.Equal(t, read, seen)
			if len(marks) > 0 {
				require.Equal(t, marks[len(marks)-1]+1, seen.Offset+seen.Length)
			}
		})
	}
}

// ending is cancelled by its file, after some reads.
type ending struct {
	blind
	cancel func()
	reads  *atomic.Int64
	left   int64 // reads until it is cancelled
}

func (f ending) Pread(b []byte, off int64) (int, error) {
	switch n := f.reads.Add(1); {
	case n == f.left:
		f.cancel()
	case n > f.left+100:
		return 0, errReadOn
	}
	return f.File.Pread(b, off)
}

func TestZerosWithoutEndAreLeftWhenTheContextEnds(t *testing.T) {
	const size = 4 << 40
	s := threeBatches(t)
	end := int64(len(s.bytes))
	for name, run := range map[string]func(context.Context, frame.File) error{
		"verify": func(ctx context.Context, f frame.File) error {
			_, err := frame.Verify(ctx, sparseSet(f, size), frame.Options{Workers: 1})
			return err
		},
		"verify from an event": func(ctx context.Context, f frame.File) error {
			_, err := frame.Verify(ctx, sparseSet(f, size), frame.Options{Workers: 1, From: 1 << 40})
			return err
		},
		"scan": func(ctx context.Context, f frame.File) (last error) {
			for _, err := range frame.Scan(ctx, f, frame.HeaderSize, size) {
				last = err
			}
			return last
		},
		"tail": func(ctx context.Context, f frame.File) error {
			_, err := frame.ScanTail(ctx, f, 0, end, size)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(context.Background())
			f := ending{blind{sparse(t, s.bytes, size)}, cancel, new(atomic.Int64), 20}
			require.Equal(t, context.Canceled, run(ctx, f))
			require.Less(t, f.reads.Load(), f.left+100)
		})
	}

	// Where a byte lies at the end, it is the sum of the tail that takes long.
	ctx, cancel := context.WithCancel(context.Background())
	f := sparse(t, s.bytes, size, size-1)
	reads := new(atomic.Int64)
	hashing := ending{blind{}, cancel, reads, 100}
	hashing.File = f
	_, err := frame.ScanTail(ctx, skipping{hashing}, 0, end, size)
	require.Equal(t, context.Canceled, err)
}

// skipping tells of holes, unlike the file that it is made of.
type skipping struct{ ending }

func (f skipping) NextData(off int64) int64 { return f.File.NextData(off) }
