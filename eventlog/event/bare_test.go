package event_test

import (
	"bytes"
	"encoding/hex"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"writegate/eventlog/event"
)

func TestABareValueHasOneEncoding(t *testing.T) {
	v := event.List(event.String("x"), event.Bytes(nil), event.Int(-1), event.Int(1<<40), event.List(), event.Bool(true))
	b, err := event.AppendValue([]byte{0xaa}, v)
	require.NoError(t, err)
	require.Equal(t, "aa96a178c400ffcf000001000000000090c3", hex.EncodeToString(b))
	back, err := event.ParseValue(b[1:])
	require.NoError(t, err)
	again, err := event.AppendValue(nil, back)
	require.NoError(t, err)
	require.Equal(t, b[1:], again)
}

func TestOtherFormsOfABareValueAreRefused(t *testing.T) {
	for name, text := range map[string]string{
		"nothing":              "",
		"a byte after the end": "0100",
		"a long form of 1":     "cc01",
		"a long length":        "d90178",
		"nil":                  "c0",
		"a float":              "cb3ff0000000000000",
		"a list cut short":     "9201",
		"an unsorted map":      "82a16201a16102",
		"nested too deep":      strings.Repeat("91", 40) + "01",
	} {
		b, err := hex.DecodeString(text)
		require.NoError(t, err)
		_, err = event.ParseValue(b)
		require.ErrorIs(t, err, event.ErrRecord, name)
	}
	_, err := event.AppendValue(nil, event.Value{})
	require.ErrorIs(t, err, event.ErrNotEncodable)
}

func FuzzBareValue(f *testing.F) {
	f.Add([]byte("\x93\x01\xa1x\x90"))
	f.Fuzz(func(t *testing.T, b []byte) {
		v, err := event.ParseValue(b)
		if err != nil {
			return
		}
		if again, err := event.AppendValue(nil, v); err != nil || !bytes.Equal(again, b) {
			t.Fatalf("accepted and encoded differently: %v", err)
		}
	})
}
