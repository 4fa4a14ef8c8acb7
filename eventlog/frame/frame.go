package frame

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"hash/crc32"
)

// Sizes of a frame, in bytes.
const (
	Align      = 8       // every frame begins at a multiple of this
	HeadSize   = 40      // what stands before previous_hash
	Overhead   = 104     // head and the two hashes
	MaxRecord  = 1 << 20 // longest record
	MaxFrame   = (Overhead + MaxRecord + Align - 1) &^ (Align - 1)
	MaxBatch   = 1 << 16 // most frames in a batch: batch_left has 16 bits
	hashLen    = 32
	recordAt   = HeadSize + hashLen
	kindEvent  = 1
	frameMagic = "GATE"
)

// FlagMore says that the next frame belongs to the same command.
const FlagMore uint8 = 1

// Where the fields of a frame lie. All integers are little-endian.
//
//	 0  magic 4 | rec_len n 4
//	 8  seq 8
//	16  durable_off 8
//	24  batch_left 2 | kind 1 | flags 1 | epoch 4
//	32  CRC32C(previous_hash, record, event_hash) 4 | CRC32C(bytes 0..35) 4
//	40  previous_hash 32 | record n | event_hash 32 | zeros to the next multiple of 8
const (
	offRecLen   = 4
	offSeq      = 8
	offDurable  = 16
	offLeft     = 24
	offKind     = 26
	offFlagByte = 27
	offEpoch    = 28
	offBodyCRC  = 32
	offHeadCRC  = 36
)

// What can be wrong with the bytes of a frame. A crash can cause all but
// ErrRule: those bytes carry right sums, so somebody computed them.
var (
	ErrTruncated = errors.New("frame: the bytes end before the frame does")
	ErrMagic     = errors.New("frame: wrong magic")
	ErrHeadCRC   = errors.New("frame: wrong CRC of the head")
	ErrLength    = errors.New("frame: record length out of range")
	ErrBodyCRC   = errors.New("frame: wrong CRC of the body")
	ErrPadding   = errors.New("frame: padding is not zero")
	ErrRule      = errors.New("frame: unknown kind or flags")
)

// A Frame is one record with what binds it to the log.
type Frame struct {
	Seq          uint64
	DurableOff   uint64 // everything in this segment below it was synced before this batch was written
	BatchLeft    uint16 // frames of the batch still to come
	Flags        uint8  // FlagMore or nothing
	Epoch        uint32 // 0 on one node
	PreviousHash [32]byte
	Hash         [32]byte
	Record       []byte
}

// hashTag keeps the hash of an event apart from those of headers, receipts and
// tree nodes.
const hashTag = "gate.event.v1\x00"

// What stands before the record in the hashed message: tag, be64(seq),
// previous_hash, be32(length).
const hashPrefix = len(hashTag) + 8 + hashLen + 4

func putHashPrefix(b []byte, seq uint64, prev []byte, recLen int) {
	n := copy(b, hashTag)
	binary.BigEndian.PutUint64(b[n:], seq)
	copy(b[n+8:], prev)
	binary.BigEndian.PutUint32(b[n+8+hashLen:], uint32(recLen))
}

// EventHash is SHA-256("gate.event.v1\0" || be64(seq) || prev || be32(len) ||
// record), the hash that the next event links to.
func EventHash(seq uint64, prev [32]byte, record []byte) [32]byte {
	var msg [hashPrefix + 1024]byte
	putHashPrefix(msg[:], seq, prev[:], len(record))
	if len(record) <= len(msg)-hashPrefix {
		return sha256.Sum256(msg[:hashPrefix+copy(msg[hashPrefix:], record)])
	}
	h := sha256.New()
	h.Write(msg[:hashPrefix]) // a hash never returns an error
	h.Write(record)
	return [32]byte(h.Sum(nil))
}

// Intact reports whether the frame's hash is the hash of its record.
func (f *Frame) Intact() bool {
	return f.Hash == EventHash(f.Seq, f.PreviousHash, f.Record)
}

// Size is how many bytes a frame with a record of recLen bytes takes.
func Size(recLen int) int { return (Overhead + recLen + Align - 1) &^ (Align - 1) }

// Append adds the frame's bytes to dst, sums included. The caller keeps the
// record within 1 to MaxRecord bytes and Hash equal to EventHash; DurableOff
// and BatchLeft may be left to SealBatch.
func Append(dst []byte, f *Frame) []byte {
	start := len(dst)
	var head [HeadSize]byte
	copy(head[:], frameMagic)
	le := binary.LittleEndian
	le.PutUint32(head[offRecLen:], uint32(len(f.Record)))
	le.PutUint64(head[offSeq:], f.Seq)
	le.PutUint64(head[offDurable:], f.DurableOff)
	le.PutUint16(head[offLeft:], f.BatchLeft)
	head[offKind], head[offFlagByte] = kindEvent, f.Flags
	le.PutUint32(head[offEpoch:], f.Epoch)

	dst = append(dst, head[:]...)
	dst = append(dst, f.PreviousHash[:]...)
	dst = append(dst, f.Record...)
	dst = append(dst, f.Hash[:]...)
	body := crc32.Checksum(dst[start+HeadSize:], castagnoli)
	le.PutUint32(dst[start+offBodyCRC:], body)
	putHeadCRC(dst[start:])
	var zeros [Align]byte
	return append(dst, zeros[:Size(len(f.Record))-(len(dst)-start)]...)
}

func putHeadCRC(b []byte) {
	binary.LittleEndian.PutUint32(b[offHeadCRC:], crc32.Checksum(b[:offHeadCRC], castagnoli))
}

// SealBatch makes one batch of frames that Append put one after the other: it
// fills batch_left and durable_off and renews the sums of the heads. It fails,
// with the batch unfit to be written, when the bytes are not whole frames or
// are more than MaxBatch of them.
func SealBatch(batch []byte, durableOff uint64) error {
	frames := 0
	for rest := batch; len(rest) > 0; frames++ {
		size, err := wholeHead(rest)
		if err != nil {
			return err
		}
		rest = rest[size:]
	}
	if frames == 0 || frames > MaxBatch {
		return ErrLength
	}
	for left := frames - 1; left >= 0; left-- {
		size := Size(int(binary.LittleEndian.Uint32(batch[offRecLen:])))
		binary.LittleEndian.PutUint64(batch[offDurable:], durableOff)
		binary.LittleEndian.PutUint16(batch[offLeft:], uint16(left))
		putHeadCRC(batch)
		batch = batch[size:]
	}
	return nil
}

// wholeHead checks magic, head CRC and length at the beginning of b and that
// the frame ends within b; it gives the frame's size. On ErrTruncated the size
// is what is needed, or 0 when not even the head is there.
func wholeHead(b []byte) (int, error) {
	if len(b) < HeadSize {
		return 0, ErrTruncated
	}
	if string(b[:offRecLen]) != frameMagic {
		return 0, ErrMagic
	}
	if binary.LittleEndian.Uint32(b[offHeadCRC:]) != crc32.Checksum(b[:offHeadCRC], castagnoli) {
		return 0, ErrHeadCRC
	}
	n := binary.LittleEndian.Uint32(b[offRecLen:])
	if n < 1 || n > MaxRecord {
		return 0, ErrLength
	}
	size := Size(int(n))
	if size > len(b) {
		return size, ErrTruncated
	}
	return size, nil
}

// bodyError judges what follows a right head; b is exactly the frame.
func bodyError(b []byte) error {
	n := int(binary.LittleEndian.Uint32(b[offRecLen:]))
	end := Overhead + n
	if binary.LittleEndian.Uint32(b[offBodyCRC:]) != crc32.Checksum(b[HeadSize:end], castagnoli) {
		return ErrBodyCRC
	}
	if !allZero(b[end:]) {
		return ErrPadding
	}
	if b[offKind] != kindEvent || b[offFlagByte]&^FlagMore != 0 {
		return ErrRule
	}
	return nil
}

// decode reads the fields of a frame whose head and length were checked. The
// record aliases b.
func decode(b []byte) Frame {
	n := int(binary.LittleEndian.Uint32(b[offRecLen:]))
	var f Frame
	f.decodeHead(b)
	f.PreviousHash = [32]byte(b[HeadSize:])
	f.Record = b[recordAt : recordAt+n : recordAt+n]
	f.Hash = [32]byte(b[recordAt+n:])
	return f
}

// decodeHead reads what the head says.
func (f *Frame) decodeHead(b []byte) {
	le := binary.LittleEndian
	f.Seq, f.DurableOff = le.Uint64(b[offSeq:]), le.Uint64(b[offDurable:])
	f.BatchLeft, f.Flags, f.Epoch = le.Uint16(b[offLeft:]), b[offFlagByte], le.Uint32(b[offEpoch:])
}

// ParseFrame reads the frame at the beginning of b and gives its size with
// padding. The record aliases b. It judges bytes only: whether the hash is
// right says Intact. The error is one of this package's and tells which part is
// wrong; with ErrRule frame and size are given too. Nothing is allocated and no length is believed that b does not hold.
func ParseFrame(b []byte) (f Frame, size int, err error) {
	size, err = wholeHead(b)
	if err != nil {
		return Frame{}, 0, err
	}
	switch err := bodyError(b[:size]); err {
	case nil, ErrRule:
		return decode(b), size, err
	default:
		return Frame{}, 0, err
	}
}

// whole tells of ParseFrame's error whether the bytes are a frame. One of unknown kind or
// flags is no event, but nothing that a crash can make: what it says of bytes before it
// counts, and its length is that of its bytes.
func whole(err error) bool { return err == nil || err == ErrRule }

var zeroPage [4096]byte

// allZero reports whether b holds zeros alone.
func allZero(b []byte) bool {
	for len(b) > len(zeroPage) {
		if !bytes.Equal(b[:len(zeroPage)], zeroPage[:]) {
			return false
		}
		b = b[len(zeroPage):]
	}
	return bytes.Equal(b, zeroPage[:len(b)])
}
