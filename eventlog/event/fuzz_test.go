package event

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func FuzzDecode(f *testing.F) {
	for _, s := range Types() {
		e := envelopeOf(filledOf(s), s.Version)
		f.Add(mustEncode(f, &e.Draft))
	}
	f.Fuzz(func(t *testing.T, record []byte) {
		var m Decoder
		first := requireSameDecoded(t, &m, record)
		requireSameDecoded(t, &m, record[:len(record)/2])
		requireSameDecoded(t, &m, record)
		d, err := Decode(record)
		require.Equal(t, d, unpacked(first), "another one was decoded behind it")
		if err != nil {
			return
		}
		require.Equal(t, record, mustEncode(t, &d))
		line := AppendJSON(nil, &Envelope{Draft: d})
		e, err := ParseJSON(line)
		require.NoError(t, err)
		require.Equal(t, d, e.Draft)
		for _, s := range Types() { // whatever the payload, and as whatever it is read
			a, b := d, first
			a.Type, a.TypeVersion, b.Type, b.TypeVersion = s.Type, s.Version, s.Type, s.Version
			requireSameOpened(t, &a, &b)
		}
	})
}

func FuzzParseJSON(f *testing.F) {
	f.Add([]byte(goldenLine))
	for _, s := range Types() {
		e := envelopeOf(filledOf(s), s.Version)
		f.Add(AppendJSON(nil, &e))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		e, err := ParseJSON(line)
		if err != nil {
			return
		}
		require.Equal(t, line, AppendJSON(nil, &e))
		d, err := Decode(mustEncode(t, &e.Draft))
		require.NoError(t, err)
		require.Equal(t, e.Draft, d)
	})
}
