package frame

import (
	"encoding/hex"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The golden vector of the format: whoever reimplements it begins here.
const (
	goldenHeaderHash = "fb1254da3b0c38ebe14723c19a7469b88386a7c377e5d2974e0693791f3ac0c0"
	goldenRecord     = "9701c410000102030405060708090a0b0c0d0e0fa77374617274757001cf1816687ec05700018105a673797374656d81a16eff"
	goldenEventHash  = "08d352297bfb2d809773e20514c861068e293d45bd7dfd7fa8f8f1d62770a9a2"
	goldenFrameStart = "474154453300000001000000000000000010000000000000000001000000000080dd4a7af22a6725"
)

func goldenHeader() Header {
	return Header{LogID: [16]byte(fill(16, 0x11)), CreatedNS: 1735689600000000000, FirstSeq: 1, Nonce: [32]byte(fill(32, 0x22)), Origin: "gate.example"}
}

func fill(n int, b byte) []byte {
	s := make([]byte, n)
	for i := range s {
		s[i] = b
	}
	return s
}

func unhex(t testing.TB, s string) []byte {
	b, err := hex.DecodeString(s)
	require.NoError(t, err)
	return b
}

func TestGoldenHeader(t *testing.T) {
	b, err := goldenHeader().Encode()
	require.NoError(t, err)
	require.Len(t, b, HeaderSize)
	h, err := ParseHeader(b)
	require.NoError(t, err)
	assert.Equal(t, goldenHeaderHash, hex.EncodeToString(h.Hash[:]))
}

func TestGoldenFrame(t *testing.T) {
	record := unhex(t, goldenRecord)
	prev := [32]byte(unhex(t, goldenHeaderHash))
	hash := EventHash(1, prev, record)
	require.Equal(t, goldenEventHash, hex.EncodeToString(hash[:]))

	b := Append(nil, &Frame{Seq: 1, PreviousHash: prev, Hash: hash, Record: record})
	require.NoError(t, SealBatch(b, HeaderSize))
	require.Len(t, b, 160)
	assert.Equal(t, goldenFrameStart, hex.EncodeToString(b[:HeadSize]))

	f, size, err := ParseFrame(b)
	require.NoError(t, err)
	assert.Equal(t, 160, size)
	assert.True(t, f.Intact())
	assert.Equal(t, Frame{Seq: 1, DurableOff: 4096, PreviousHash: prev, Hash: hash, Record: record}, f)
}

func TestHeadTakesTurnsAndTheHigherCounterWins(t *testing.T) {
	h := Head{LogID: [16]byte(fill(16, 3)), Seq: 9, EventHash: [32]byte(fill(32, 4)), Segment: 2, Clean: true, EndOff: 8192, Time: time.Unix(5, 6).UTC(), Counter: 7}
	got, err := ParseHead(h.Encode())
	require.NoError(t, err)
	assert.Equal(t, h, got)
	assert.Equal(t, int64(SlotSize), Slot(7))
	assert.Equal(t, int64(0), Slot(8))
}
