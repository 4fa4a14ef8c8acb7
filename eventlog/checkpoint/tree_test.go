package checkpoint_test

import (
	"encoding/hex"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/mod/sumdb/tlog"
	"pgregory.net/rapid"

	"writegate/eventlog/checkpoint"
)

// byDefinition is the root of RFC 6962, part 2.1, as it is written there.
func byDefinition(hashes [][32]byte) [32]byte {
	if len(hashes) == 1 {
		return tlog.RecordHash(hashes[0][:])
	}
	k := 1
	for 2*k < len(hashes) {
		k *= 2
	}
	return tlog.NodeHash(byDefinition(hashes[:k]), byDefinition(hashes[k:]))
}

func TestTheRootOfTheGoldenLog(t *testing.T) {
	hash, err := hex.DecodeString("08d352297bfb2d809773e20514c861068e293d45bd7dfd7fa8f8f1d62770a9a2")
	require.NoError(t, err)
	tree, _ := grow(t, [][32]byte{[32]byte(hash)})
	root := tree.Root()
	require.Equal(t, "55158b7a312544683bf2ecf01e4c9f7fcd3462d0a1cac88b46b075b1e5efec4c", hex.EncodeToString(root[:]))
	empty, _ := grow(t, nil)
	root = empty.Root()
	require.Equal(t, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855", hex.EncodeToString(root[:]))
}

// The three ways to a root agree with the definition, at every size; a tree
// that is closed and opened anywhere goes on as if it had not been.
func TestAllWaysToARootAgree(t *testing.T) {
	const n = 70
	hashes := history(1, n)
	_, m := grow(t, hashes)
	sizes := make([]uint64, n)
	for i := range sizes {
		sizes[i] = uint64(n - i)
	}
	roots := checkpoint.NewRoots(append(sizes, 3, 3)...)
	for i, h := range hashes {
		require.NoError(t, roots.Add(uint64(i+1), h))
		require.Equal(t, byDefinition(hashes[:i+1]), roots.Root())
	}
	for size := 1; size <= n; size++ {
		want := byDefinition(hashes[:size])
		stored, err := checkpoint.RootAt(m, uint64(size))
		require.NoError(t, err)
		require.Equal(t, want, stored)
		passed, ok := roots.At(uint64(size))
		require.True(t, ok)
		require.Equal(t, want, passed)
		theirs, err := tlog.TreeHash(int64(size), m)
		require.NoError(t, err)
		require.Equal(t, want, [32]byte(theirs))

		again, err := checkpoint.OpenTree(uint64(size), m)
		require.NoError(t, err)
		rest := &tail{first: tlog.StoredHashCount(int64(size))}
		require.NoError(t, again.Append(rest, hashes[size:]...))
		require.Equal(t, byDefinition(hashes), again.Root())
		for i, h := range rest.hashes {
			whole, err := m.ReadHashes([]int64{rest.first + int64(i)})
			require.NoError(t, err)
			require.Equal(t, whole[0], h)
		}
	}
}

// Leaves that come in runs of any length give the hashes of leaves that come one
// by one: the tree of a replay is that of the gate that wrote the log.
func TestATreeDoesNotShowHowItsLeavesCame(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		hashes := history(1, rapid.IntRange(1, 3000).Draw(t, "leaves"))
		one, alone := new(checkpoint.Memory), new(checkpoint.Tree)
		for i := range hashes {
			require.NoError(t, alone.Append(one, hashes[i]))
		}
		many, tree := new(checkpoint.Memory), new(checkpoint.Tree)
		for at := 0; at < len(hashes); {
			end := min(at+rapid.IntRange(1, 700).Draw(t, "run"), len(hashes))
			require.NoError(t, tree.Append(many, hashes[at:end]...))
			theirs, err := tlog.TreeHash(int64(end), one)
			require.NoError(t, err)
			require.Equal(t, [32]byte(theirs), tree.Root())
			at = end
		}
		require.Equal(t, one, many)
	})
}

// tail is where a tree goes on: only what comes after first.
type tail struct {
	first  int64
	hashes []checkpoint.Hash
	err    error
}

func (w *tail) WriteHashes(first int64, hashes []checkpoint.Hash) error {
	if w.err != nil {
		return w.err
	}
	if first != w.first+int64(len(w.hashes)) {
		return errors.New("a gap")
	}
	w.hashes = append(w.hashes, hashes...)
	return nil
}

func TestAFailedWriteLeavesTheTree(t *testing.T) {
	hashes := history(1, 9)
	tree, m := grow(t, hashes[:5])
	before := tree.Root()
	full := errors.New("disk full")
	require.ErrorIs(t, tree.Append(&tail{err: full}, hashes[5:]...), full)
	require.Equal(t, before, tree.Root())
	require.Equal(t, uint64(5), tree.Size())
	require.NoError(t, tree.Append(m, hashes[5:]...))
	require.Equal(t, byDefinition(hashes), tree.Root())
	require.NoError(t, tree.Append(&tail{err: full}), "nothing to write")
}

func TestStoredHashesThatAreMissingAreNamed(t *testing.T) {
	_, m := grow(t, history(1, 5))
	_, err := checkpoint.OpenTree(6, m)
	require.ErrorIs(t, err, checkpoint.ErrTree)
	short := tlog.HashReaderFunc(func([]int64) ([]tlog.Hash, error) { return nil, nil })
	for name, try := range map[string]func() error{
		"open":             func() error { _, err := checkpoint.OpenTree(5, short); return err },
		"root":             func() error { _, err := checkpoint.RootAt(short, 5); return err },
		"inclusion":        func() error { _, err := checkpoint.ProveInclusion(short, 5, 1); return err },
		"consistency":      func() error { _, err := checkpoint.ProveConsistency(short, 3, 5); return err },
		"event 0":          func() error { _, err := checkpoint.ProveInclusion(m, 5, 0); return err },
		"event beyond":     func() error { _, err := checkpoint.ProveInclusion(m, 5, 6); return err },
		"smaller tree":     func() error { _, err := checkpoint.ProveConsistency(m, 5, 4); return err },
		"a hash not there": func() error { _, err := m.ReadHashes([]int64{-1}); return err },
	} {
		require.ErrorIs(t, try(), checkpoint.ErrTree, name)
	}
	require.Error(t, m.WriteHashes(0, make([]checkpoint.Hash, 1)), "hashes are stored once")
}

// Above 1<<62 tlog's arithmetic would run for ever.
func TestSizesOfNoLogAreRefusedAtOnce(t *testing.T) {
	var p checkpoint.Proof
	var root [32]byte
	for _, size := range []uint64{checkpoint.MaxSize + 1, 1 << 62, 1<<62 + 1, 1<<63 - 1, 1 << 63, 1<<64 - 1} {
		_, m := grow(t, nil)
		_, err := checkpoint.OpenTree(size, m)
		require.Error(t, err)
		_, err = checkpoint.RootAt(m, size)
		require.Error(t, err)
		_, err = checkpoint.ProveInclusion(m, size, size)
		require.Error(t, err)
		_, err = checkpoint.ProveConsistency(m, 1, size)
		require.Error(t, err)
		require.ErrorIs(t, checkpoint.CheckInclusion(p, size, root, size, root), checkpoint.ErrProof)
		require.ErrorIs(t, checkpoint.CheckConsistency(p, size, root, 1, root), checkpoint.ErrProof)
	}
	require.ErrorIs(t, checkpoint.CheckInclusion(p, checkpoint.MaxSize, root, 1, root), checkpoint.ErrProof)
	require.ErrorIs(t, checkpoint.CheckConsistency(p, checkpoint.MaxSize, root, 1, root), checkpoint.ErrProof)
	tree, err := checkpoint.OpenTree(checkpoint.MaxSize, tlog.HashReaderFunc(func(i []int64) ([]tlog.Hash, error) { return make([]tlog.Hash, len(i)), nil }))
	require.NoError(t, err)
	require.Error(t, tree.Append(new(checkpoint.Memory), root))
}

func TestRootsReadWithoutGaps(t *testing.T) {
	roots := checkpoint.NewRoots(0, 2, 9)
	require.Error(t, roots.Add(2, filled(2)))
	require.NoError(t, roots.Add(1, filled(1)))
	require.Error(t, roots.Add(1, filled(1)))
	require.NoError(t, roots.Add(2, filled(2)))
	require.Equal(t, uint64(2), roots.Size())
	empty, ok := roots.At(0)
	require.True(t, ok)
	require.Equal(t, checkpoint.NewRoots().Root(), empty)
	_, ok = roots.At(2)
	require.True(t, ok)
	_, ok = roots.At(1)
	require.False(t, ok, "nobody asked")
	_, ok = roots.At(9)
	require.False(t, ok, "the log ended before")
}

func drawSizes(t *rapid.T) (old, size uint64) {
	size = rapid.Uint64Range(1, 130).Draw(t, "size")
	return rapid.Uint64Range(1, size).Draw(t, "old"), size
}

// spoil changes a proof in one of the ways in which it can be wrong.
func spoil(t *rapid.T, p checkpoint.Proof) checkpoint.Proof {
	p = append(checkpoint.Proof{}, p...)
	ways := []string{"longer"}
	if len(p) > 0 {
		ways = append(ways, "bit", "shorter")
	}
	switch rapid.SampledFrom(ways).Draw(t, "way") {
	case "bit":
		p[rapid.IntRange(0, len(p)-1).Draw(t, "hash")][rapid.IntRange(0, 31).Draw(t, "byte")] ^= 1 << rapid.IntRange(0, 7).Draw(t, "bit")
	case "shorter":
		p = p[:len(p)-1]
	case "longer":
		p = append(p, filled(0))
	}
	return p
}

func TestInclusionProofsHoldAndSpoiledOnesDoNot(t *testing.T) {
	hashes := history(1, 130)
	_, m := grow(t, hashes)
	rapid.Check(t, func(t *rapid.T) {
		seq, size := drawSizes(t)
		root, err := checkpoint.RootAt(m, size)
		require.NoError(t, err)
		p, err := checkpoint.ProveInclusion(m, size, seq)
		require.NoError(t, err)
		require.NoError(t, checkpoint.CheckInclusion(p, size, root, seq, hashes[seq-1]))

		require.ErrorIs(t, checkpoint.CheckInclusion(spoil(t, p), size, root, seq, hashes[seq-1]), checkpoint.ErrProof)
		require.ErrorIs(t, checkpoint.CheckInclusion(p, size, root, seq, filled(7)), checkpoint.ErrProof)
		require.ErrorIs(t, checkpoint.CheckInclusion(p, size, filled(7), seq, hashes[seq-1]), checkpoint.ErrProof)
		other := rapid.Uint64Range(0, size+1).Draw(t, "other")
		if other != seq {
			require.ErrorIs(t, checkpoint.CheckInclusion(p, size, root, other, hashes[seq-1]), checkpoint.ErrProof)
		}
	})
}

func TestConsistencyProofsHoldAndSpoiledOnesDoNot(t *testing.T) {
	_, m := grow(t, history(1, 130))
	rapid.Check(t, func(t *rapid.T) {
		old, size := drawSizes(t)
		oldRoot, err := checkpoint.RootAt(m, old)
		require.NoError(t, err)
		root, err := checkpoint.RootAt(m, size)
		require.NoError(t, err)
		p, err := checkpoint.ProveConsistency(m, old, size)
		require.NoError(t, err)
		require.NoError(t, checkpoint.CheckConsistency(p, size, root, old, oldRoot))

		require.ErrorIs(t, checkpoint.CheckConsistency(spoil(t, p), size, root, old, oldRoot), checkpoint.ErrProof)
		require.ErrorIs(t, checkpoint.CheckConsistency(p, size, filled(7), old, oldRoot), checkpoint.ErrProof)
		require.ErrorIs(t, checkpoint.CheckConsistency(p, size, root, old, filled(7)), checkpoint.ErrProof)
		require.ErrorIs(t, checkpoint.CheckConsistency(p, old-1, root, old, oldRoot), checkpoint.ErrProof)
	})
}

func TestConsistencyWithTheEmptyTree(t *testing.T) {
	tree, m := grow(t, history(1, 5))
	empty := checkpoint.NewRoots().Root()
	p, err := checkpoint.ProveConsistency(m, 0, 5)
	require.NoError(t, err)
	require.Empty(t, p)
	require.NoError(t, checkpoint.CheckConsistency(p, 5, tree.Root(), 0, empty))
	require.NoError(t, checkpoint.CheckConsistency(p, 0, empty, 0, empty))
	require.ErrorIs(t, checkpoint.CheckConsistency(p, 0, tree.Root(), 0, empty), checkpoint.ErrProof)
	require.ErrorIs(t, checkpoint.CheckConsistency(p, 5, tree.Root(), 0, filled(1)), checkpoint.ErrProof)
	require.ErrorIs(t, checkpoint.CheckConsistency(checkpoint.Proof{filled(1)}, 5, tree.Root(), 0, empty), checkpoint.ErrProof)
}

// Whoever chains the log anew from event i on, up to any length, has no proof
// that leads from a checkpoint at or after i to the new root: neither the one
// of the true tree nor the one of the false tree.
func TestARewrittenHistoryHasNoConsistencyProof(t *testing.T) {
	_, truth := grow(t, history(1, 130))
	rapid.Check(t, func(t *rapid.T) {
		old, size := drawSizes(t)
		from := rapid.Uint64Range(1, old).Draw(t, "from")
		oldRoot, err := checkpoint.RootAt(truth, old)
		require.NoError(t, err)
		forged, m := grow(t, rewritten(int(size), from))
		for _, r := range []checkpoint.Reader{truth, m} {
			p, err := checkpoint.ProveConsistency(r, old, size)
			require.NoError(t, err)
			require.ErrorIs(t, checkpoint.CheckConsistency(p, size, forged.Root(), old, oldRoot), checkpoint.ErrProof)
		}
	})
}

func BenchmarkTreeAppend(b *testing.B) {
	for _, run := range []int{1, 8, 64, 512} {
		b.Run(fmt.Sprint(run), func(b *testing.B) {
			hashes := history(1, run)
			tree, err := checkpoint.OpenTree(0, nil)
			require.NoError(b, err)
			for b.Loop() {
				if err := tree.Append(nowhere{}, hashes...); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(tree.Size()), "ns/event")
		})
	}
}

type nowhere struct{}

func (nowhere) WriteHashes(int64, []checkpoint.Hash) error { return nil }

func BenchmarkRoots(b *testing.B) {
	roots := checkpoint.NewRoots()
	h := filled(1)
	for b.Loop() {
		if err := roots.Add(roots.Size()+1, h); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(roots.Size())/b.Elapsed().Seconds(), "events/s")
}

func TestEachStoredHashIsKnownByItsEvent(t *testing.T) {
	var stored checkpoint.Memory
	var tree checkpoint.Tree
	for seq := uint64(1); seq <= 1100; seq++ {
		first := checkpoint.StoredHashes(seq - 1)
		require.NoError(t, tree.Append(&stored, [32]byte{byte(seq)}))
		_, err := stored.ReadHashes([]int64{checkpoint.StoredHashes(seq) - 1})
		require.NoError(t, err)
		_, err = stored.ReadHashes([]int64{checkpoint.StoredHashes(seq)})
		require.Error(t, err)
		for index := first; index < checkpoint.StoredHashes(seq); index++ {
			require.Equal(t, seq, checkpoint.StoredWith(index))
		}
	}
	require.Zero(t, checkpoint.StoredWith(-1))
}
