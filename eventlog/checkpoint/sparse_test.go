package checkpoint

import (
	"crypto/sha256"
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// hashOf is the event hash of the tests' event seq.
func hashOf(seq uint64) [32]byte { return sha256.Sum256(binary.BigEndian.AppendUint64(nil, seq)) }

// A Sparse answers what a whole tree answers, with a few hashes a level.
func TestASparseTreeProvesWhatAWholeOneDoes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.Uint64Range(1, 600).Draw(t, "size")
		old, seq := rapid.Uint64Range(0, size).Draw(t, "old"), rapid.Uint64Range(1, size).Draw(t, "seq")
		var whole Memory
		var tree Tree
		sparse := NewSparse()
		use := func(r Reader) (root [32]byte, proofs []Proof, err error) {
			if root, err = RootAt(r, size); err != nil {
				return root, nil, err
			}
			inclusion, err := ProveInclusion(r, size, seq)
			if err != nil {
				return root, nil, err
			}
			consistency, err := ProveConsistency(r, old, size)
			return root, []Proof{inclusion, consistency}, err
		}
		require.NoError(t, sparse.Plan(func(r Reader) error { _, _, err := use(r); return err }))
		for s := uint64(1); s <= size; s++ {
			require.NoError(t, tree.Append(&whole, hashOf(s)))
			require.NoError(t, sparse.Add(s, hashOf(s)))
		}
		require.Equal(t, size, sparse.Size())
		root, proofs, err := use(&whole)
		require.NoError(t, err)
		gotRoot, got, err := use(sparse)
		require.NoError(t, err)
		require.Equal(t, root, gotRoot)
		require.Equal(t, proofs, got)
		require.NoError(t, CheckInclusion(got[0], size, gotRoot, seq, hashOf(seq)))
		require.LessOrEqual(t, len(sparse.kept), 60)
	})
}

func TestASparseTreeGivesOnlyWhatWasPlannedAndRead(t *testing.T) {
	s := NewSparse()
	plan := func(r Reader) error { _, err := ProveInclusion(r, 4, 2); return err }
	require.NoError(t, s.Plan(plan))
	for seq := uint64(1); seq <= 3; seq++ {
		require.NoError(t, s.Add(seq, hashOf(seq)))
	}
	require.ErrorIs(t, plan(s), ErrTree, "the fourth event was not read")
	require.ErrorIs(t, s.Add(5, hashOf(5)), ErrTree, "a gap")
	require.NoError(t, s.Add(4, hashOf(4)))
	require.NoError(t, plan(s))
	_, err := ProveInclusion(s, 4, 3)
	require.ErrorIs(t, err, ErrTree, "it was not planned")
}
