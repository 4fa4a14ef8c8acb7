package frame

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"unicode/utf8"
)

// Sizes of a segment's header and of its two texts, in bytes.
const (
	HeaderSize = 4096
	MaxOrigin  = 256
	MaxSigner  = 512
)

// FlagReplicated marks a log whose batches come from a replicated stream. It
// is the one flag a header may carry.
const FlagReplicated uint32 = 2

// Where the fields of a header lie. All integers are little-endian.
//
//	  0  magic 8 | format_version 2 | header_len 2 | flags 4
//	 16  log_id 16 | created_unix_ns 8
//	 40  segment_no 4 | hash_alg 1 | codec 1 | frame_version 2
//	 48  first_seq 8 | prev_segment_last_hash 32
//	 88  nonce 32
//	120  origin 2+n | signer vkey 2+m | zeros
//	4056 header_hash 32 | CRC32C 4 | end magic 4
const (
	headerMagic    = "GATEWAL\x01"
	headerEndMagic = "HDR\n"
	headerTag      = "gate.wal.header.v1\x00"

	formatVersion = 1
	hashSHA256    = 1
	codecMsgpack1 = 1
	frameVersion  = 1

	offFormat   = 8
	offFlags    = 12
	offLogID    = 16
	offCreated  = 32
	offSegment  = 40
	offVersions = 44
	offFirstSeq = 48
	offPrevHash = 56
	offNonce    = 88
	offTexts    = 120
	offHash     = 4056
	offCRC      = 4088
	offEndMagic = 4092
)

// ErrHeader is the cause of every error of ParseHeader and Encode.
var ErrHeader = errors.New("segment header")

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// A Header is the first 4,096 bytes of a segment. All segments of a log agree
// in everything but Segment, FirstSeq, PrevHash and Hash.
type Header struct {
	Flags     uint32
	LogID     [16]byte // random, once per log
	CreatedNS int64    // when the log was created, ns since 1970
	Segment   uint32   // from 0
	FirstSeq  uint64   // sequence number of the first event here
	PrevHash  [32]byte // event_hash of the last event of the segment before; zero in segment 0
	Nonce     [32]byte // random: no two logs begin their chain alike
	Origin    string   // name of the log in checkpoints, UTF-8
	Signer    string   // verifier key of the signer at creation; may be empty

	// Hash is what event 1 links to. ParseHeader fills it; Encode computes its
	// own and ignores this field.
	Hash [32]byte
}

// Encode gives the header's 4,096 bytes with hash, sum and end magic. It fails,
// with ErrHeader, where ParseHeader would refuse what it made.
func (h Header) Encode() ([]byte, error) {
	if err := h.check(); err != nil {
		return nil, err
	}
	b := make([]byte, HeaderSize)
	copy(b, headerMagic)
	le := binary.LittleEndian
	le.PutUint16(b[offFormat:], formatVersion)
	le.PutUint16(b[offFormat+2:], HeaderSize)
	le.PutUint32(b[offFlags:], h.Flags)
	copy(b[offLogID:], h.LogID[:])
	le.PutUint64(b[offCreated:], uint64(h.CreatedNS))
	le.PutUint32(b[offSegment:], h.Segment)
	b[offVersions], b[offVersions+1] = hashSHA256, codecMsgpack1
	le.PutUint16(b[offVersions+2:], frameVersion)
	le.PutUint64(b[offFirstSeq:], h.FirstSeq)
	copy(b[offPrevHash:], h.PrevHash[:])
	copy(b[offNonce:], h.Nonce[:])
	end := putText(b, offTexts, h.Origin)
	putText(b, end, h.Signer)
	sum := headerHash(b)
	copy(b[offHash:], sum[:])
	le.PutUint32(b[offCRC:], crc32.Checksum(b[:offCRC], castagnoli))
	copy(b[offEndMagic:], headerEndMagic)
	return b, nil
}

func putText(b []byte, off int, s string) int {
	binary.LittleEndian.PutUint16(b[off:], uint16(len(s)))
	return off + 2 + copy(b[off+2:], s)
}

func headerHash(b []byte) [32]byte {
	msg := make([]byte, 0, len(headerTag)+offHash)
	msg = append(msg, headerTag...)
	return sha256.Sum256(append(msg, b[:offHash]...))
}

// BeginsLog reports whether a file with these first bytes is a segment of some
// event log, be the rest of its header damaged or not.
func BeginsLog(b []byte) bool { return bytes.HasPrefix(b, []byte(headerMagic)) }

// ParseHeader reads a header from the first 4,096 bytes of b. It accepts only
// what Encode can make, so an accepted header encodes to the same bytes.
func ParseHeader(b []byte) (Header, error) {
	if err := checkHeaderBytes(b); err != nil {
		return Header{}, err
	}
	le := binary.LittleEndian
	h := Header{
		Flags:     le.Uint32(b[offFlags:]),
		LogID:     [16]byte(b[offLogID:]),
		CreatedNS: int64(le.Uint64(b[offCreated:])),
		Segment:   le.Uint32(b[offSegment:]),
		FirstSeq:  le.Uint64(b[offFirstSeq:]),
		PrevHash:  [32]byte(b[offPrevHash:]),
		Nonce:     [32]byte(b[offNonce:]),
		Hash:      [32]byte(b[offHash:]),
	}
	var end int
	var err error
	if h.Origin, end, err = text(b, offTexts, MaxOrigin, "origin"); err != nil {
		return Header{}, err
	}
	if h.Signer, end, err = text(b, end, MaxSigner, "signer"); err != nil {
		return Header{}, err
	}
	if !allZero(b[end:offHash]) {
		return Header{}, headerErr("bytes after the texts are not zero")
	}
	return h, h.check()
}

// checkHeaderBytes judges what is the same in every header, and the sums.
func checkHeaderBytes(b []byte) error {
	if len(b) < HeaderSize {
		return headerErr("only %d of %d bytes", len(b), HeaderSize)
	}
	le := binary.LittleEndian
	sum := headerHash(b)
	switch {
	case string(b[:offFormat]) != headerMagic:
		return headerErr("wrong magic")
	case string(b[offEndMagic:HeaderSize]) != headerEndMagic:
		return headerErr("wrong end magic")
	case le.Uint32(b[offCRC:]) != crc32.Checksum(b[:offCRC], castagnoli):
		return headerErr("wrong CRC")
	case !bytes.Equal(sum[:], b[offHash:offCRC]):
		return headerErr("wrong header_hash")
	case le.Uint16(b[offFormat:]) != formatVersion:
		return headerErr("format version %d is not known", le.Uint16(b[offFormat:]))
	case le.Uint16(b[offFormat+2:]) != HeaderSize:
		return headerErr("header length %d", le.Uint16(b[offFormat+2:]))
	case b[offVersions] != hashSHA256 || b[offVersions+1] != codecMsgpack1 || le.Uint16(b[offVersions+2:]) != frameVersion:
		return headerErr("hash, codec or frame version is not known")
	}
	return nil
}

// check judges the values, so that a header written can always be read.
func (h *Header) check() error {
	switch {
	case h.Flags&^FlagReplicated != 0:
		return headerErr("flags %#x are not known", h.Flags)
	case len(h.Origin) > MaxOrigin || !utf8.ValidString(h.Origin):
		return headerErr("origin must be UTF-8 of at most %d bytes", MaxOrigin)
	case len(h.Signer) > MaxSigner || !utf8.ValidString(h.Signer):
		return headerErr("signer must be UTF-8 of at most %d bytes", MaxSigner)
	case h.Segment == 0 && (h.FirstSeq != 1 || h.PrevHash != [32]byte{}):
		return headerErr("segment 0 begins with event 1 and links to nothing")
	case h.FirstSeq <= uint64(h.Segment):
		return headerErr("segment %d can't begin with event %d: no segment is empty", h.Segment, h.FirstSeq)
	}
	return nil
}

// sameLog reports whether two headers can stand in one log.
func (h *Header) sameLog(o *Header) bool {
	return h.Flags == o.Flags && h.LogID == o.LogID && h.CreatedNS == o.CreatedNS &&
		h.Nonce == o.Nonce && h.Origin == o.Origin && h.Signer == o.Signer
}

func text(b []byte, off, limit int, what string) (string, int, error) {
	n := int(binary.LittleEndian.Uint16(b[off:]))
	if n > limit {
		return "", 0, headerErr("%s of %d bytes", what, n)
	}
	return string(b[off+2 : off+2+n]), off + 2 + n, nil
}

func headerErr(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrHeader}, args...)...)
}
