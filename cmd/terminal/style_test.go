package terminal

import (
	"bytes"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestColourIsForPeopleWhoWantIt(t *testing.T) {
	for name, c := range map[string]struct {
		environ []string
		wanted  bool
	}{
		"nothing said":      {nil, true},
		"a terminal's name": {[]string{"TERM=xterm"}, true},
		"NO_COLOR":          {[]string{"TERM=xterm", "NO_COLOR=1"}, false},
		"an empty NO_COLOR": {[]string{"NO_COLOR="}, true},
		"a dumb terminal":   {[]string{"TERM=dumb"}, false},
	} {
		assert.Equal(t, c.wanted, wantsColour(c.environ), name)
	}
}

func TestOnlyATerminalIsPainted(t *testing.T) {
	file, err := os.Create(t.TempDir() + "/out")
	require.NoError(t, err)
	defer file.Close()
	for _, out := range []io.Writer{file, &bytes.Buffer{}} {
		require.Equal(t, "no", StyleFor(out, []string{"TERM=xterm"}).Red("no"))
	}
	require.Equal(t, "\x1b[1;31mno\x1b[0m", Style{painted: true}.Red("no"))
	require.Empty(t, Style{painted: true}.Bold(""))
}

func TestATableIsAlignedWhateverIsPainted(t *testing.T) {
	rows := func(s Style) [][]Cell {
		return [][]Cell{
			{{Text: "RULE"}, {Text: "N", Right: true}, {Text: "CASES"}},
			{{Text: "reads", Paint: s.Green}, Number(7), {Text: "eins"}},
			{{Text: "größere"}, Number(12), {Text: ""}},
		}
	}
	var plain, painted bytes.Buffer
	require.NoError(t, PrintTable(&plain, rows(Style{})))
	require.NoError(t, PrintTable(&painted, rows(Style{painted: true})))
	require.Equal(t, "  RULE      N  CASES\n  reads     7  eins\n  größere  12\n", plain.String())
	bare := strings.NewReplacer("\x1b[32m", "", "\x1b[0m", "").Replace(painted.String())
	require.Equal(t, plain.String(), bare)
	require.NotEqual(t, plain.String(), painted.String())
}

func TestATableThatCanNotBeWrittenIsReported(t *testing.T) {
	require.Error(t, PrintTable(fullDisk{}, [][]Cell{Plain("x")}))
}
