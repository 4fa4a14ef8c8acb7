package controlplane

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestWhatCannotBeSeenIsWrittenOut(t *testing.T) {
	for text, want := range map[string]string{
		"<p>\u202eana in shop</p>":                        "<p>[U+202E]ana in shop</p>",
		"a\u2028b\u200bc\ufeffd\u009be\u2066f\U000e0041g": "a[U+2028]b[U+200B]c[U+FEFF]d[U+009B]e[U+2066]f[U+E0041]g",
		"o\ufe0f\U000e01ef":                               "o[U+FE0F][U+E01EF]",
		`<a title="x` + "\u202e" + `">`:                   `<a title="x[U+202E]">`,
		"é 漢字 👩‍ \u00a0 ok\n":                             "é 漢字 👩[U+200D] \u00a0 ok\n",
		"\xff kept":                                       "\xff kept",
		// What a person typed goes back as it was.
		`<input value="` + "\u202e" + `"><textarea id="sql">` + "\u202e" + "</textarea>\u202e": `<input value="` + "\u202e" + `"><textarea id="sql">` + "\u202e" + "</textarea>[U+202E]",
	} {
		require.Equal(t, want, string(writeOut([]byte(text))))
	}
	require.Empty(t, strings.Map(func(r rune) rune {
		if unseen(r) {
			return r
		}
		return -1
	}, templatesText(t)), "the templates hold none, so that each is data")
}

// templatesText is the text of all templates.
func templatesText(t *testing.T) string {
	t.Helper()
	entries, err := pageFiles.ReadDir("pages")
	require.NoError(t, err)
	require.NotEmpty(t, entries)
	var all strings.Builder
	for _, e := range entries {
		text, err := pageFiles.ReadFile("pages/" + e.Name())
		require.NoError(t, err)
		all.Write(text)
	}
	return all.String()
}
