package checkpoint

import (
	"encoding/binary"
	"math"
)

// These write the few values of gate-msgpack-1 that a receipt has, each in its
// one form (docs/spec/README.md). Every answer renders a receipt, so it does not
// go through event.Value; a test holds the two against each other.

func packList(dst []byte, n int) []byte { return packLength(dst, n, 0x90, 15, 0, 0xdc, 0xdd) }

func packBytes(dst, b []byte) []byte {
	return append(packLength(dst, len(b), 0, -1, 0xc4, 0xc5, 0xc6), b...)
}

func packText(dst []byte, s string) []byte {
	return append(packLength(dst, len(s), 0xa0, 31, 0xd9, 0xda, 0xdb), s...)
}

// packLength writes the head of a value of length n: in one byte up to most, else
// with a length of 1, 2 or 4 bytes behind the head for it; 0 is no such form.
func packLength(dst []byte, n int, short byte, most int, long1, long2, long4 byte) []byte {
	switch {
	case n <= most:
		return append(dst, short|byte(n))
	case n <= math.MaxUint8 && long1 != 0:
		return append(dst, long1, byte(n))
	case n <= math.MaxUint16:
		return binary.BigEndian.AppendUint16(append(dst, long2), uint16(n))
	}
	return binary.BigEndian.AppendUint32(append(dst, long4), uint32(n))
}

func packInt(dst []byte, n int64) []byte {
	switch {
	case n < 0:
		return packNegative(dst, n)
	case n <= math.MaxInt8:
		return append(dst, byte(n))
	case n <= math.MaxUint8:
		return append(dst, 0xcc, byte(n))
	case n <= math.MaxUint16:
		return binary.BigEndian.AppendUint16(append(dst, 0xcd), uint16(n))
	case n <= math.MaxUint32:
		return binary.BigEndian.AppendUint32(append(dst, 0xce), uint32(n))
	}
	return binary.BigEndian.AppendUint64(append(dst, 0xcf), uint64(n))
}

func packNegative(dst []byte, n int64) []byte {
	switch {
	case n >= -32:
		return append(dst, byte(n))
	case n >= math.MinInt8:
		return append(dst, 0xd0, byte(n))
	case n >= math.MinInt16:
		return binary.BigEndian.AppendUint16(append(dst, 0xd1), uint16(n))
	case n >= math.MinInt32:
		return binary.BigEndian.AppendUint32(append(dst, 0xd2), uint32(n))
	}
	return binary.BigEndian.AppendUint64(append(dst, 0xd3), uint64(n))
}
