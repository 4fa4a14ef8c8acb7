package lookalike

import (
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"golang.org/x/text/unicode/norm"
)

// Each letter stands in one row, and only there: what NFKC makes ASCII is known by that.
func TestTheTableHasLettersThatLookLikeOne(t *testing.T) {
	for r, like := range letters {
		require.Greater(t, r, rune(unicode.MaxASCII))
		require.True(t, unicode.IsLetter(r) || unicode.IsNumber(r), "%U", r)
		require.True(t, norm.NFKC.IsNormalString(string(r)), "%U", r)
		require.Regexp(t, "^[0-9A-Za-z]$", string(like))
	}
	require.Equal(t, "o", ASCII(0x43e))
	require.Equal(t, "A", ASCII(0xab7a), "a small letter of Cherokee")
	require.Equal(t, "fi", ASCII(0xfb01))
	require.Empty(t, ASCII('o')+ASCII('é')+ASCII('я'))
}

// Two words of one language that differ are never taken for each other.
func TestNoTwoLettersOfAnAlphabetLookTheSame(t *testing.T) {
	for _, alphabet := range []string{
		"абвгдеёжзийклмнопрстуфхцчшщъыьэюяіїєґ", "абвгдђежзијклљмнњопрстћуфхцчџш", "αβγδεζηθικλμνξοπρστυφχψωςάέήίόύώ", "աբգդեզէըթժիլխծկհձղճմյնշոչպջռսվտրցւփքօֆ",
	} {
		for _, letters := range []string{alphabet, strings.ToUpper(alphabet)} {
			var names Names
			for _, r := range letters {
				names.Add(string(r))
			}
			for _, r := range letters {
				require.False(t, names.Alike(string(r)), "%c", r)
			}
		}
	}
}

func TestNamesThatLookTheSameAreTold(t *testing.T) {
	for _, pair := range [][2]string{{"copy", "сору"}, {"COPY", "сору"}, {"Il", "\u04c0\u04cf"}, {"\u0406", "\u04c0"}, {"0", "О"}, {"\"\u00c5\"", "\"\u212b\""}, {"key", "КЕУ"}, {`"by"`, "ВУ"}} {
		var names Names
		names.Add(pair[0])
		require.False(t, names.Alike(pair[1]))
		names.Add(pair[1])
		require.True(t, names.Alike(pair[1]), pair)
		for _, name := range pair {
			require.Equal(t, utf8.RuneCountInString(name) < len(name), names.Alike(name), name)
		}
	}
	var names Names
	for _, name := range []string{"größe1", "größel", "ORDER", "BY", "ВУ", "TO", "ТО", `"Имя"`, "имя", "m²", "գ", "զ"} {
		names.Add(name)
	}
	for _, name := range []string{"größe1", "größel", "ВУ", "ТО", "имя", "m²", "գ", "զ"} {
		require.False(t, names.Alike(name), name)
	}
	names.Add("q")
	require.True(t, names.Alike("գ"))
}

func TestAlphabetsThatShareTheirLooksAreNamed(t *testing.T) {
	for name, want := range map[string]string{
		"p\u0430id": "Cyrillic Latin", "\u1d0frders": "Latin phonetic", "\ua4f3rders": "Latin Lisu", "\u0430\u03bf": "Cyrillic Greek",
		"größe": "", "имя_1": "", "latency_μs": "", "Δt": "", "id_اسم": "", "売上_id": "", "kır": "",
	} {
		require.Equal(t, want, strings.Join(Mixed(name), " "), name)
	}
}

func TestAWordOfAnotherAlphabetMayLookLatin(t *testing.T) {
	for word, want := range map[string]bool{"арес": true, "ΝΙΚΟ": true, "Егор": false, "Анна": false, "Νίκος": false, "նոր": false, "apec": false} {
		require.Equal(t, want, LooksLatin(word), word)
	}
}

// Names of East Asia have full-width letters and Rome's numbers in them, and signs the
// selector of their picture.
func TestWhatPeopleWriteInEastAsiaIsNotStyled(t *testing.T) {
	for _, name := range []string{"顧客ＩＤ", "テーブル１", "２０２４年", "商品Ⅱ", `"顧客ＩＤ"`} {
		require.False(t, HasStyled(name), name)
	}
	for _, name := range []string{"ｏｒｄｅｒｓ", "Ⅱ", "𝗈", "２０２４"} {
		require.True(t, HasStyled(name), name)
	}
	require.True(t, Chooses('✔', 0xfe0f))
	require.False(t, Chooses('o', 0xfe0f))
	require.False(t, Chooses('"', 0xfe0f))
	var names Names
	names.Add("商品Ⅰ")
	names.Add("商品Ⅱ")
	require.False(t, names.Alike("商品Ⅱ"))
	names.Add("商品II")
	require.True(t, names.Alike("商品Ⅱ"))
	require.False(t, Chooses('字', 0xfe0f))
}

// What a server does not look at of a name, and the sentences that some letters stand
// for, cost nothing.
func TestALongNameIsReadAsFarAsAServerDoes(t *testing.T) {
	long := strings.Repeat("\ufdfa", 85000)
	require.Len(t, asRead(long), 63)
	require.LessOrEqual(t, len(look(long)), 63)
	require.LessOrEqual(t, testing.AllocsPerRun(10, func() { var n Names; n.Add(long); n.Alike(long); HasStyled(long); Mixed(long) }), 200.0)
}
