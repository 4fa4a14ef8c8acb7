package event

import (
	"encoding/base64"
	"encoding/hex"
	"strconv"
	"time"
)

// exactInt is the largest whole number that every JSON reader takes exactly.
const exactInt = 1<<53 - 1

const timeLayout = "2006-01-02T15:04:05.000000000Z"

// Timestamp is a moment as every answer and every readable form of an event
// writes it: RFC 3339, UTC, all nine digits of the nanoseconds.
func Timestamp(t time.Time) string { return t.UTC().Format(timeLayout) }

// Keys of the readable form in their order; the context's stand in contextNames.
const (
	jsonSeq          = `{"seq":`
	jsonID           = `,"event_id":`
	jsonType         = `,"event_type":`
	jsonTime         = `,"timestamp":`
	jsonRecordVer    = `,"record_version":`
	jsonTypeVer      = `,"type_version":`
	jsonPayload      = `,"payload":`
	jsonPreviousHash = `,"previous_hash":`
	jsonHash         = `,"event_hash":`
	jsonIntKey       = `{"$i":`
	jsonBytesKey     = `{"$b":`
)

// AppendJSON appends the one readable form of e (design/eventlog.md part 4):
// one object without spaces and without a newline at its end. It loses
// nothing; ParseJSON is its inverse. The envelope has to be one that Encode
// accepts, otherwise the text means nothing.
func AppendJSON(dst []byte, e *Envelope) []byte {
	dst = strconv.AppendUint(append(dst, jsonSeq...), e.Seq, 10)
	dst = appendText(append(dst, jsonID...), e.ID.String())
	dst = appendText(append(dst, jsonType...), string(e.Type))
	dst = append(append(dst, jsonTime...), '"')
	dst = append(e.Time.UTC().AppendFormat(dst, timeLayout), '"')
	dst = appendContext(dst, &e.Context)
	dst = strconv.AppendUint(append(dst, jsonRecordVer...), RecordVersion, 10)
	dst = strconv.AppendUint(append(dst, jsonTypeVer...), uint64(e.TypeVersion), 10)
	packed := reader{record: e.bytes()}
	if packed.record == "" {
		w := writers.Get().(*writer)
		w.buf = w.scratch[:0]
		w.fields(e.Payload, payloadDepth)
		packed.record = string(w.buf)
		w.keepScratch()
		w.release()
	}
	dst = appendPacked(append(dst, jsonPayload...), &packed)
	dst = appendHash(append(dst, jsonPreviousHash...), &e.PreviousHash)
	dst = appendHash(append(dst, jsonHash...), &e.Hash)
	return append(dst, '}')
}

func appendContext(dst []byte, c *Context) []byte {
	for n := 1; n <= contextFields; n++ {
		if s := *c.at(n); s != "" || n <= contextAlways {
			dst = append(append(append(dst, `,"`...), contextNames[n]...), `":`...)
			dst = appendText(dst, s)
		}
	}
	return dst
}

// AppendText appends s as a JSON string in the one form that readable events
// use, for the documents that carry such events.
func AppendText(dst []byte, s string) []byte { return appendText(dst, s) }

// AppendHash appends a hash in the form of the readable events.
func AppendHash(dst []byte, h [32]byte) []byte { return appendHash(dst, &h) }

func appendHash(dst []byte, h *[32]byte) []byte {
	return append(hex.AppendEncode(append(dst, '"'), h[:]), '"')
}

// appendText escapes the quote, the backslash and the bytes below 0x20, and
// nothing else. It is our own code because encoding/json has changed its
// escapes before, and these bytes are compared.
func appendText(dst []byte, s string) []byte {
	dst = append(dst, '"')
	start := 0
	for i := 0; i < len(s); i++ {
		c := s[i]
		if c >= 0x20 && c != '"' && c != '\\' {
			continue
		}
		dst = append(dst, s[start:i]...)
		start = i + 1
		if c < 0x20 {
			dst = append(dst, '\\', 'u', '0', '0', '0'+c>>4, hexDigits[c&15])
		} else {
			dst = append(dst, '\\', c)
		}
	}
	return append(append(dst, s[start:]...), '"')
}

const hexDigits = "0123456789abcdef"

// appendPacked writes the value that r comes to, of bytes that were checked. A key that
// begins with `$` gets one more, so that `$i` and `$b` are free to mark what JSON itself
// can't hold.
func appendPacked(dst []byte, r *reader) []byte {
	kind, head := r.kind(), r.head()
	switch kind {
	case KindBool:
		return strconv.AppendBool(dst, head == headTrue)
	case KindInt:
		return appendInt(dst, r.intBody(head))
	case KindString:
		return appendText(dst, r.rawText(head))
	case KindBytes:
		dst = append(append(dst, jsonBytesKey...), '"')
		dst = base64.StdEncoding.AppendEncode(dst, []byte(r.blob(head)))
		return append(dst, `"}`...)
	case KindList:
		dst = append(dst, '[')
		for n := r.length(head, &arrays); n > 0; n-- {
			if dst = appendPacked(dst, r); n > 1 {
				dst = append(dst, ',')
			}
		}
		return append(dst, ']')
	case KindMap:
		dst = append(dst, '{')
		for n := r.length(head, &maps); n > 0; n-- {
			if key := r.rawText(r.head()); key != "" && key[0] == '$' {
				dst = appendText(dst, "$"+key)
			} else {
				dst = appendText(dst, key)
			}
			if dst = appendPacked(append(dst, ':'), r); n > 1 {
				dst = append(dst, ',')
			}
		}
		return append(dst, '}')
	}
	return append(dst, "null"...) // of what no encoder accepts; ParseJSON refuses it too
}

func appendInt(dst []byte, n int64) []byte {
	if n >= -exactInt && n <= exactInt {
		return strconv.AppendInt(dst, n, 10)
	}
	dst = append(append(dst, jsonIntKey...), '"')
	return append(strconv.AppendInt(dst, n, 10), `"}`...)
}

// FormatTime is a moment as every readable form shows it: RFC 3339, UTC, nine decimals.
func FormatTime(t time.Time) string { return t.UTC().Format(timeLayout) }
