package checkpoint_test

import (
	"crypto/sha256"
	"encoding/binary"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"writegate/eventlog/checkpoint"
)

// The golden vectors of this package were computed by another program, in
// another language and with another Ed25519, from design part 9 alone. The
// private key is the 32 bytes 00, 01 .. 1f.
const (
	goldenPrivate = "-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f\n-----END PRIVATE KEY-----\n"
	goldenPublic  = "-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEAA6EHv/POEL4dcN0Y50vAmWfk1jCbpQ1fHdyGZBJVMbg=\n-----END PUBLIC KEY-----\n"
	goldenKeyID   = "ed25519:56475aa75463474c"
	goldenRaw     = "03a107bff3ce10be1d70dd18e74bc09967e4d6309ba50d5f1ddc8664125531b8"
	goldenVKey    = "gate.example+78d11f8f+AQOhB7/zzhC+HXDdGOdLwJln5NYwm6UNXx3chmQSVTG4"

	// Event 42, the second of three events from 41 with the hashes 32 x 01, 32 x
	// 02 and 32 x 03, in the log 16 x 11, at 1735689600000000001.
	goldenReceipt = "m69nYXRlLnJlY2VpcHQudjHEEBEREREREREREREREREREREqxCACAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAikDxCDfiWiWx5lTHx_R5VbOomppiasGhTvL_dPk9Ql6YR9lj5LEINz_54be0W0oPGY4Rq0MT_JlWPzN42yp0wsuoZ6t6fwOxCCsqgRmOoVHovcMYMwY-TeHlrE8T5oI9w1q2uZiNlswxs8YFmh-wFcAAbhlZDI1NTE5OjU2NDc1YWE3NTQ2MzQ3NGPEQE9sQHGQUqmA8RRnUexP69CvuHyJE6xTfQCWB-knrhgYQMTDekXoyIxxA219q5tb_F3mkF-FwGEC7FfFzKxyEgo"

	// The checkpoint of the log that holds event 1 of design part 3, and its
	// cosignature of 1735689700 by the key 20, 21 .. 3f.
	goldenNote        = "gate.example\n1\nVRWLejElRGg78uzwHkyff800YtChysiLRrB1seXv7Ew=\n\n— gate.example eNEfj5R5lwM/UHzsyy8h5oE08hDOUSuS+PA+0Upi9Nm2J1QCzC7mDKWXa8P1yyrYTVPvGWtA1GmkXMbwen4qqRHTVAw=\n"
	goldenWitness     = "witness.example/w1+20324abe+BCmsuuFBvMrwsi4alNNNC8c2HlJtC/4SyJeUvJMilm3X"
	goldenCosignature = "— witness.example/w1 IDJKvgAAAABndIXkqft5jWhnjDTsHgdLDwCSRscpRLVOwyWTBbtGK3iXSbOws9WwOs9KT57F5Pwp1blrsYp3OtWuiF8tnjQSsoIcBA==\n"
)

var (
	goldenLog  = [16]byte{0x11, 0x11, 0x11, 0x11, 0x11, 0x11, 0x11, 0x11, 0x11, 0x11, 0x11, 0x11, 0x11, 0x11, 0x11, 0x11}
	goldenTime = time.Unix(0, 1735689600000000001).UTC()
)

func goldenKey(t testing.TB) *checkpoint.PrivateKey {
	t.Helper()
	key, err := checkpoint.ParsePrivateKey([]byte(goldenPrivate))
	require.NoError(t, err)
	return key
}

func newKey(t testing.TB) *checkpoint.PrivateKey {
	t.Helper()
	key, err := checkpoint.NewPrivateKey()
	require.NoError(t, err)
	return key
}

func filled(b byte) (h [32]byte) {
	for i := range h {
		h[i] = b
	}
	return h
}

// history gives n event hashes; another branch is another history.
func history(branch uint64, n int) [][32]byte {
	hashes := make([][32]byte, n)
	for i := range hashes {
		var b [16]byte
		binary.BigEndian.PutUint64(b[:], branch)
		binary.BigEndian.PutUint64(b[8:], uint64(i))
		hashes[i] = sha256.Sum256(b[:])
	}
	return hashes
}

// rewritten is history(1, n), chained anew from event from on.
func rewritten(n int, from uint64) [][32]byte {
	return append(history(1, int(from-1)), history(2, n)[from-1:]...)
}

// grow stores the tree of hashes.
func grow(t require.TestingT, hashes [][32]byte) (*checkpoint.Tree, *checkpoint.Memory) {
	m := new(checkpoint.Memory)
	tree, err := checkpoint.OpenTree(0, m)
	require.NoError(t, err)
	require.NoError(t, tree.Append(m, hashes...))
	return tree, m
}

// signBatch signs hashes as the events from first on.
func signBatch(t require.TestingT, key *checkpoint.PrivateKey, first uint64, hashes ...[32]byte) *checkpoint.Batch {
	a := checkpoint.NewAccumulator(goldenLog, key)
	for i, h := range hashes {
		require.NoError(t, a.Add(first+uint64(i), h))
	}
	return a.Sign(goldenTime)
}
