package commands

import (
	"bytes"
	"context"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"writegate/eventlog/event"
)

// A snapshot of any size fits the log's bounds of an event and of a group, and is known once all
// of it is there.
func TestALargeCatalogueIsKeptInParts(t *testing.T) {
	w := begin(t, setup{})
	packed := make([]byte, 12<<20+17)
	rand.NewChaCha8([32]byte{}).Read(packed)
	for i, content := range [][]byte{packed, []byte("x")} {
		hash, base := [32]byte{1, byte(i)}, [32]byte{1}
		if i == 0 {
			base = [32]byte{}
		}
		_, known, err := w.KeptCatalog(context.Background(), hash)
		require.NoError(t, err)
		require.False(t, known)
		require.NoError(t, w.RecordCatalog(context.Background(), hash, base, content))
		s, known, err := w.KeptCatalog(context.Background(), hash)
		require.NoError(t, err)
		require.True(t, known)
		require.Equal(t, i, s.Bases)
	}
	var whole []byte
	parts := 0
	for _, e := range w.events() {
		if e.Type != event.TypeCatalogRecorded {
			continue
		}
		var p event.CatalogRecorded
		require.NoError(t, e.Parse(&p))
		if p.Base == [32]byte{} {
			parts++
			require.Equal(t, []int{parts, 25}, []int{p.Part, p.Parts})
			whole = append(whole, p.Content...)
		}
	}
	require.True(t, bytes.Equal(packed, whole))
	w.check()
}
