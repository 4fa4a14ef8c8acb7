package terminal

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"writegate/eventlog/checkpoint"
)

// What is no key is the path of a file, however long it is.
func TestAKeyIsReadFromAFileOfAnyName(t *testing.T) {
	t.Chdir(t.TempDir())
	private, err := checkpoint.NewPrivateKey()
	require.NoError(t, err)
	key := private.Public()
	text, err := key.PEM()
	require.NoError(t, err)
	for n := 1; n < 70; n++ {
		name := strings.Repeat("k", n)
		require.NoError(t, os.WriteFile(name, text, 0o600))
		found, err := Keys([]string{name})
		require.NoError(t, err, name)
		require.Equal(t, []checkpoint.PublicKey{key}, found, name)
		_, err = Keys([]string{strings.Repeat("x", n)})
		require.ErrorContains(t, err, "no such file", "it was misspelt")
	}
}
