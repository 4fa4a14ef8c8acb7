package event

import (
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// requireSameSkimmed holds the skim of a payload against its reader.
func requireSameSkimmed(t require.TestingT, payload string) {
	r := reader{record: payload}
	r.payload()
	end := skimPayload(payload, 0)
	require.Equal(t, r.err == nil, end != skimFailed, "%x: %v", payload, r.err)
	if end != skimFailed {
		require.Equal(t, r.at, end, "%x", payload)
	}
}

func packedOf(t require.TestingT, p Payload) string {
	packed, err := AppendValue(nil, mapOf(p))
	require.NoError(t, err)
	return string(packed)
}

func TestASkimTakesWhatTheReaderTakesByteByByte(t *testing.T) {
	for _, s := range Types() {
		for _, p := range []Typed{filledOf(s), s.New()} {
			packed := packedOf(t, p.Fields())
			requireSameSkimmed(t, packed)
			requireSameSkimmed(t, packed+"\x00")
			for i := range packed {
				requireSameSkimmed(t, packed[:i])
				for _, other := range []byte{packed[i] ^ 1, packed[i] ^ 0x20, packed[i] ^ 0x80, 0x80, 0xa0, 0xc1, 0xc4, 0xcc, 0xcf, 0xd3, 0xd9, 0xdd, 0xde, 0xdf, 0xff} {
					requireSameSkimmed(t, packed[:i]+string([]byte{other})+packed[i+1:])
				}
			}
		}
	}
}

func TestASkimTakesEveryHeadAsTheReaderDoes(t *testing.T) {
	for head := range 256 {
		for _, behind := range []string{"", "00", "01", "1f", "20", "7f", "80", "ff", "0000", "000f", "0010", "00ff", "0100", "ffff", "00000000", "0000ffff", "00010000", "7fffffff", "80000000",
			"ffffffff", "00000000ffffffff", "0000000100000000", "7fffffffffffffff", "8000000000000000", "ffffffff7fffffff", "ffffffff80000000", "ffffffffffffffff"} {
			b, err := hex.DecodeString(fmt.Sprintf("81a16e%02x%s", head, behind))
			require.NoError(t, err)
			for _, more := range []int{0, 1, 31, 32, 255, 256, 65535, 65536, 65537} {
				requireSameSkimmed(t, string(b)+strings.Repeat("\x01", more))
			}
		}
	}
}

func TestASkimTakesLongKeysAndTexts(t *testing.T) {
	for _, n := range []int{0, 1, 6, 7, 8, 30, 31, 32, 33, 200} {
		for _, c := range []string{"x", "\u00e9", "\xff"} {
			s := strings.Repeat("x", n) + c
			for _, p := range []Payload{{{s, Int(1)}}, {{"k", String(s)}}, {{"a" + s, Int(1)}, {"b" + s, Bytes([]byte(s))}}} {
				requireSameSkimmed(t, unordered(p))
			}
		}
	}
}

func TestASkimOrdersKeysAsTheReaderDoes(t *testing.T) {
	long := strings.Repeat("x", 40)
	keys := []string{"", "\x00", "\x00\x00", "a", "a\x00", "ab", "b", "abcdefg", "abcdefgh", "abcdefgh\x00", "abcdefghi", "abcdefghj", "\u00e9", "abcdefgh\u00e9", "\xff", "abcdefgh\xff",
		long[:31], long[:32], long[:33], long[:31] + "y", long, "y" + long}
	for _, a := range keys {
		for _, b := range keys {
			for _, last := range []Value{Int(1), String(long)} { // the end of the bytes near by, and far
				requireSameSkimmed(t, unordered(Payload{{a, Int(1)}, {b, last}}))
			}
		}
	}
}

// unordered writes fields as they come, whatever their keys and texts are.
func unordered(p Payload) string {
	b := []byte{maps.short | byte(len(p))}
	for _, f := range p {
		if b = appendAnyText(b, f.Key); f.Value.kind == KindString {
			b = appendAnyText(b, f.Value.text)
		} else {
			b, _ = AppendValue(b, f.Value)
		}
	}
	return string(b)
}

func appendAnyText(b []byte, s string) []byte {
	if len(s) < 32 {
		return append(append(b, strShort|byte(len(s))), s...)
	}
	return append(append(b, strs.long1, byte(len(s))), s...)
}

// nestedIn gives a payload whose last level has this depth in a record.
func nestedIn(depth int, list bool, last string) string {
	in := strings.Repeat("81a161", depth-payloadDepth)
	if list {
		in = strings.Repeat("91", depth-payloadDepth)
	}
	return "81a16e" + in + last
}

func TestDepthIsBoundedAlikeForBothWaysToRead(t *testing.T) {
	for depth := maxDepth - 2; depth <= maxDepth+2; depth++ {
		for _, list := range []bool{true, false} {
			for last, levels := range map[string]int{"01": 0, "90": 1, "80": 1, "81a16101": 1, "9101": 1} {
				payload := nestedIn(depth, list, last)
				record := unhex(t, around(payload))
				requireSameSkimmed(t, string(unhex(t, payload)))
				requireSameDecoded(t, new(Decoder), record)
				_, err := Decode(record)
				require.Equal(t, depth+levels <= maxDepth, err == nil, "%s at %d", last, depth)
			}
		}
	}
}

func TestASkimTakesWhatTheReaderTakesOfDamagedPayloads(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		packed := packedOf(t, drawFields(t, 3))
		requireSameSkimmed(t, packed)
		for range 10 {
			at := rapid.IntRange(0, len(packed)-1).Draw(t, "at")
			to := rapid.IntRange(at, min(at+9, len(packed))).Draw(t, "to")
			put := rapid.SliceOfN(rapid.Byte(), 0, 9).Draw(t, "put")
			requireSameSkimmed(t, packed[:at]+string(put)+packed[to:])
		}
	})
}

// altered gives p with one thing changed, somewhere in its depth.
func altered(t *rapid.T, p Payload) Payload {
	p = slices.Clone(p)
	if len(p) == 0 {
		return NewPayload(Field{"x", drawValue(t, 1)})
	}
	i := rapid.IntRange(0, len(p)-1).Draw(t, "field")
	v := &p[i].Value
	switch n := rapid.IntRange(0, 5).Draw(t, "change"); {
	case n > 2 && v.kind == KindMap:
		v.kids = altered(t, v.kids)
	case n > 2 && v.kind == KindList && len(v.kids) > 0:
		v.kids = slices.Clone(v.kids)
		k := &v.kids[rapid.IntRange(0, len(v.kids)-1).Draw(t, "item")].Value
		if k.kind == KindMap && n > 3 {
			k.kids = altered(t, k.kids)
		} else {
			*k = drawValue(t, 1)
		}
	case n == 0:
		p = slices.Delete(p, i, i+1)
	case n == 1:
		p[i].Key += rapid.SampledFrom([]string{"", "_", strings.Repeat("x", 40)}).Draw(t, "more")
	default:
		*v = rapid.OneOf(rapid.Custom(func(t *rapid.T) Value { return drawValue(t, 1) }),
			rapid.SampledFrom([]Value{Int(0), Int(-1), Bool(false), String(""), Bytes(nil), Bytes(make([]byte, 32)), List(), Map()})).Draw(t, "value")
	}
	slices.SortStableFunc(p, func(a, b Field) int { return strings.Compare(a.Key, b.Key) })
	return slices.CompactFunc(p, func(a, b Field) bool { return a.Key == b.Key })
}

// Each type is read from bytes as it is read from fields: as it is written, and
// with anything in it changed.
func TestEveryTypeIsReadFromBytesAsFromFields(t *testing.T) {
	var m Decoder
	for _, s := range Types() {
		for _, p := range []Typed{filledOf(s), s.New()} {
			e := envelopeOf(p, s.Version)
			got := requireSameDecoded(t, &m, mustEncode(t, &e.Draft))
			back := s.New()
			require.NoError(t, got.Parse(back), s.Type)
			require.Equal(t, p.Fields(), back.Fields(), s.Type)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.SampledFrom(specs).Draw(t, "type")
		p := filledOf(s)
		if rapid.IntRange(0, 3).Draw(t, "empty") == 0 {
			p = s.New()
		}
		e := envelopeOf(p, s.Version)
		for range rapid.IntRange(1, 3).Draw(t, "changes") {
			e.Payload = altered(t, e.Payload)
		}
		got := requireSameDecoded(t, &m, mustEncode(t, &e.Draft))
		other := rapid.SampledFrom(specs).Draw(t, "read as").New()
		requireSameParsed(t, e.Payload, &got, other)
	})
}

func requireSameParsed(t require.TestingT, p Payload, got *Draft, into Typed) {
	s, ok := Lookup(into.EventType())
	require.True(t, ok)
	want := s.New()
	require.Equal(t, fmt.Sprint(want.Parse(p)), fmt.Sprint(got.Parse(into)))
	require.Equal(t, want, into)
}

func TestAPayloadThatIsSetCountsAndNotTheBytes(t *testing.T) {
	var m Decoder
	d := goldenDraft()
	got := requireSameDecoded(t, &m, mustEncode(t, &d))
	for _, p := range []Payload{{}, (&HealthFail{Step: "wal", Message: "slow"}).Fields()} {
		got.Payload = p
		require.Equal(t, p, got.Fields())
		_, ok := got.Get("n")
		require.False(t, ok)
		back, err := Decode(mustEncode(t, &got))
		require.NoError(t, err)
		require.Equal(t, p, back.Payload)
		want, wrong := new(HealthFail), new(HealthFail)
		require.Equal(t, want.Parse(p), got.Parse(wrong))
		require.Equal(t, want, wrong)
	}
}

func TestReadingBytesTakesNoMoreMemoryThanTheStruct(t *testing.T) {
	var m Decoder
	for _, d := range writeDrafts() {
		if d.Type == TypeDecisionRecorded {
			continue // has lists
		}
		got, p := requireSameDecoded(t, &m, mustEncode(t, &d)), specByType[d.Type].New()
		require.Zero(t, testing.AllocsPerRun(100, func() { require.NoError(t, got.Parse(p)) }), d.Type)
		require.Zero(t, testing.AllocsPerRun(100, func() { got.Get("agent_layer") }), d.Type)
	}
}
