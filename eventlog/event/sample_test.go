package event

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"writegate/fixtures/filled"
)

// filledOf gives every field of a new payload a value of its own that is not zero.
func filledOf(s Spec) Typed {
	p := s.New()
	filled.Struct(p, 0)
	return p
}

// envelopeOf puts a payload into a fixed place of a chain.
func envelopeOf(p Typed, version uint16) Envelope {
	id := ID{0x01, 0x94, 1, 2, 3, 4, 0x75, 6, 0x87, 8, 9, 10, 11, 12, 13, 14}
	return Envelope{
		Seq: 7, PreviousHash: [32]byte{1, 2}, Hash: [32]byte{3, 4},
		Draft: Draft{
			ID: id, Type: p.EventType(), TypeVersion: version, Time: time.Unix(0, goldenTime+120).UTC(),
			Context: Context{
				Actor: "bot", RequestID: prefixed(prefixRequest, id), ApprovalID: "apr_of another form", Mode: "enforce",
			},
			Payload: p.Fields(),
		},
	}
}

// drawDraft draws any draft that has a record.
func drawDraft(t *rapid.T) Draft {
	d := Draft{
		Type:        Type(rapid.StringN(1, 30, -1).Draw(t, "type")),
		TypeVersion: rapid.Uint16Range(1, 65535).Draw(t, "version"),
		Time:        time.Unix(0, rapid.Int64().Draw(t, "time")).UTC(),
		Payload:     drawFields(t, 3),
	}
	copy(d.ID[:], rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "id"))
	for n := 1; n <= contextFields; n++ {
		if rapid.Bool().Draw(t, "present") {
			*d.Context.at(n) = drawContext(t, n)
		}
	}
	return d
}

func drawContext(t *rapid.T, n int) string {
	if prefix := contextPrefixes[n]; prefix != "" && rapid.Bool().Draw(t, "own form") {
		var id ID
		copy(id[:], rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "context id"))
		return prefixed(prefix, id)
	}
	return rapid.String().Draw(t, "context")
}

func drawFields(t *rapid.T, depth int) Payload {
	keys := rapid.SliceOfNDistinct(rapid.OneOf(rapid.String(), rapid.SampledFrom([]string{"$i", "$b", "$", "$$i", ""})), 0, 5, rapid.ID).Draw(t, "keys")
	fields := make([]Field, len(keys))
	for i, k := range keys {
		fields[i] = Field{k, drawValue(t, depth)}
	}
	return NewPayload(fields...)
}

func drawValue(t *rapid.T, depth int) Value {
	kinds := 4
	if depth > 0 {
		kinds = 6
	}
	switch rapid.IntRange(1, kinds).Draw(t, "kind") {
	case 1:
		return Bool(rapid.Bool().Draw(t, "bool"))
	case 2:
		return Int(rapid.Int64().Draw(t, "int"))
	case 3:
		return String(rapid.String().Draw(t, "string"))
	case 4:
		return Bytes(rapid.SliceOf(rapid.Byte()).Draw(t, "bytes"))
	case 5:
		items := make([]Value, rapid.IntRange(0, 20).Draw(t, "items"))
		for i := range items {
			items[i] = drawValue(t, depth-1)
		}
		return List(items...)
	}
	return mapOf(drawFields(t, depth-1))
}

func mustEncode(t require.TestingT, d *Draft) []byte {
	record, err := Encode(nil, d)
	require.NoError(t, err)
	return record
}

func TestWhatIsDrawnRoundTripsThroughRecordAndText(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := drawDraft(t)
		record := mustEncode(t, &d)
		back, err := Decode(record)
		require.NoError(t, err)
		require.Equal(t, d, back)

		e := Envelope{Seq: rapid.Uint64().Draw(t, "seq"), Draft: d, Hash: eventHash(1, [32]byte{}, record)}
		line := AppendJSON(nil, &e)
		parsed, err := ParseJSON(line)
		require.NoError(t, err)
		require.Equal(t, e, parsed)
	})
}
