package frame

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
)

// maxFlipRecord bounds the search for a flipped bit: beyond it a CRC of 32 bits
// still tells one bit from another, but no longer cheaply.
const maxFlipRecord = 4096

// explainBody says in words what happened to a body, where one flipped bit
// explains it. b is the whole frame.
func explainBody(b []byte) string {
	n := int(binary.LittleEndian.Uint32(b[offRecLen:]))
	if n > maxFlipRecord {
		return ""
	}
	return flipped(b[HeadSize:Overhead+n], binary.LittleEndian.Uint32(b[offBodyCRC:]), HeadSize, offBodyCRC)
}

// explainHead does the same for the head at a gap's beginning.
func explainHead(f File, g gap) string {
	b := make([]byte, HeadSize)
	if n, err := f.Pread(b, g.off); err != nil || n < HeadSize {
		return ""
	}
	return flipped(b[:offHeadCRC], binary.LittleEndian.Uint32(b[offHeadCRC:]), 0, offHeadCRC)
}

// flipped finds the one bit whose change makes the sum right. base and sumAt
// are where data and sum lie in the frame.
func flipped(data []byte, sum uint32, base, sumAt int) string {
	diff := sum ^ crc32.Checksum(data, castagnoli)
	if diff == 0 {
		return ""
	}
	if diff&(diff-1) == 0 {
		bit := 0
		for ; diff>>bit != 1; bit++ {
		}
		return flipText(sumAt+bit/8, bit%8)
	}
	// A CRC is linear: flipping a bit changes it by a value that depends only on
	// how far the bit stands from the end. d runs through these values.
	d := uint32(1)
	for at := len(data) - 1; at >= 0; at-- {
		for bit := 7; bit >= 0; bit-- {
			if d = crcStep(d); d == diff {
				return flipText(base+at, bit)
			}
		}
	}
	return ""
}

// crcStep moves a difference one bit further away from the end of the data.
func crcStep(d uint32) uint32 {
	if d&1 != 0 {
		return d>>1 ^ crc32.Castagnoli
	}
	return d >> 1
}

func flipText(at, bit int) string {
	return fmt.Sprintf("one flipped bit explains it: byte %d of the frame, bit %d", at, bit)
}
