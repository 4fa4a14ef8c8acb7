package event

import (
	"encoding/hex"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// What the decoder takes has to be what the encoder writes: else a fact would
// have two records, and two hashes.
func TestWhatTheDecoderTakesTheEncoderWouldHaveWritten(t *testing.T) {
	heads := rapid.SampledFrom([]byte{0xcc, 0xcd, 0xce, 0xcf, 0xd0, 0xd1, 0xd2, 0xd3, 0xd9, 0xda, 0xdb, 0xc4, 0xc5, 0xc6, 0xdc, 0xdd, 0xde, 0xdf})
	var m Decoder // one for all: what was read before may not matter
	rapid.Check(t, func(t *rapid.T) {
		d := drawDraft(t)
		record := mustEncode(t, &d)
		for range 20 {
			at := rapid.IntRange(0, len(record)-1).Draw(t, "at")
			to := rapid.IntRange(at, min(at+40, len(record))).Draw(t, "to")
			var between []byte
			switch rapid.IntRange(0, 3).Draw(t, "damage") {
			case 0:
				between, to = []byte{rapid.Byte().Draw(t, "byte")}, at+1
			case 1: // a head in another form, as cc 01 is for 01
				between, to = append([]byte{heads.Draw(t, "head")}, make([]byte, rapid.IntRange(0, 7).Draw(t, "zeros"))...), at+1
				between = append(between, record[at]&rapid.SampledFrom([]byte{0xff, 0x1f, 0x0f}).Draw(t, "mask"))
			case 2:
				between = append(append([]byte(nil), record[at:to]...), record[at:to]...)
			}
			damaged := append(append(append([]byte(nil), record[:at]...), between...), record[to:]...)
			back, err := Decode(damaged)
			requireSameDecoded(t, &m, damaged)
			if err != nil {
				require.ErrorIs(t, err, ErrRecord)
				continue
			}
			require.Equal(t, damaged, mustEncode(t, &back))
		}
	})
}

func TestTheDecoderRefusesLongerFormsOfNumbersAndLengths(t *testing.T) {
	text := func(n int) string { return strings.Repeat("61", n) }
	for name, value := range map[string]string{
		"127 as uint8": "cc7f", "255 as uint16": "cd00ff", "65535 as uint32": "ce0000ffff", "2^32-1 as uint64": "cf00000000ffffffff",
		"2^63": "cf8000000000000000", "-32 as int8": "d0e0", "-128 as int16": "d1ff80", "-32768 as int32": "d2ffff8000", "-2^31 as int64": "d3ffffffff80000000",
		"0 as int8": "d000", "1 as int64": "d30000000000000001",
		"text of 31 as str8": "d91f" + text(31), "text of 255 as str16": "da00ff" + text(255), "text of 65535 as str32": "db0000ffff" + text(65535),
		"no bytes as bin16": "c50000", "bytes of 255 as bin16": "c500ff" + text(255), "bytes of 65535 as bin32": "c60000ffff" + text(65535),
		"list of 15 as array16": "dc000f" + text(15), "list of 65535 as array32": "dd0000ffff" + text(65535),
		"no fields as map16": "de0000", "no fields as map32": "df00000000",
	} {
		b, err := hex.DecodeString(around("81a16e" + value))
		require.NoError(t, err, name)
		_, err = Decode(b)
		require.ErrorIs(t, err, ErrRecord, name)
		requireSameDecoded(t, new(Decoder), b)
	}
}
