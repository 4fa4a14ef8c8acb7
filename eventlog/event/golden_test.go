package event

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// goldenTime is the creation of the golden log, design/eventlog.md part 3.
const goldenTime = 1735689600000000000

// goldenDraft is event 1 of the golden vector.
func goldenDraft() Draft {
	return Draft{
		ID:   ID{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
		Type: TypeStartup, TypeVersion: 1,
		Time:    time.Unix(0, goldenTime+1).UTC(),
		Context: Context{Actor: "system"},
		Payload: NewPayload(Field{"n", Int(-1)}),
	}
}

const goldenRecord = "9701c410000102030405060708090a0b0c0d0e0fa77374617274757001cf1816687ec05700018105a673797374656d81a16eff"

// eventHash is the formula of the design page, written a second time so that
// the record is judged without the package that frames it.
func eventHash(seq uint64, prev [32]byte, record []byte) [32]byte {
	b := []byte("gate.event.v1\x00")
	b = binary.BigEndian.AppendUint64(b, seq)
	b = append(b, prev[:]...)
	b = binary.BigEndian.AppendUint32(b, uint32(len(record)))
	return sha256.Sum256(append(b, record...))
}

func unhex(t *testing.T, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	require.NoError(t, err)
	return b
}

func TestTheGoldenEventHasItsRecordAndHash(t *testing.T) {
	d := goldenDraft()
	record, err := Encode(nil, &d)
	require.NoError(t, err)
	require.Equal(t, goldenRecord, hex.EncodeToString(record))

	header := [32]byte(unhex(t, "fb1254da3b0c38ebe14723c19a7469b88386a7c377e5d2974e0693791f3ac0c0"))
	hash := eventHash(1, header, record)
	require.Equal(t, "08d352297bfb2d809773e20514c861068e293d45bd7dfd7fa8f8f1d62770a9a2", hex.EncodeToString(hash[:]))
}
