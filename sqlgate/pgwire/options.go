package pgwire

import "strings"

// splitOptions cuts the startup parameter options at white space; a backslash
// takes the next character as it is (pg_split_opts of PostgreSQL).
func splitOptions(text string) []string {
	var words []string
	var word strings.Builder
	inWord, escaped := false, false
	for i := range len(text) {
		c := text[i]
		switch {
		case escaped:
			word.WriteByte(c)
			escaped = false
		case c == '\\':
			escaped, inWord = true, true
		case isSpace(c):
			if inWord {
				words = append(words, word.String())
				word.Reset()
			}
			inWord = false
		default:
			word.WriteByte(c)
			inWord = true
		}
	}
	if inWord {
		words = append(words, word.String())
	}
	return words
}

// isSpace is isspace() of C in the C locale.
func isSpace(c byte) bool { return c == ' ' || c >= '\t' && c <= '\r' }

// parseOptions reads the settings of the startup parameter options: -c name=value,
// -cname=value and --name=value. Any other switch is refused by name.
func parseOptions(text string) ([][2]string, error) {
	var settings [][2]string
	words := splitOptions(text)
	for i := 0; i < len(words); i++ {
		word := words[i]
		var pair string
		switch {
		case word == "-c":
			if i++; i == len(words) {
				return nil, fatalf("42601", "invalid command-line argument for server process: -c without a setting")
			}
			pair = words[i]
		case strings.HasPrefix(word, "-c"):
			pair = word[2:]
		case strings.HasPrefix(word, "--") && len(word) > 2:
			pair = word[2:]
		default:
			return nil, notThroughTheGate("the option "+quote(word), "In options, give settings alone: -c name=value.")
		}
		name, value, ok := strings.Cut(pair, "=")
		if !ok || name == "" {
			return nil, fatalf("42601", "invalid command-line argument for server process: -c %s requires a value", quote(pair))
		}
		settings = append(settings, [2]string{strings.ReplaceAll(name, "-", "_"), value})
	}
	return settings, nil
}

// quote shows a text of the client's in a message: shortened, in quotes.
func quote(s string) string {
	const most = 100
	if len(s) > most {
		s = s[:most] + "..."
	}
	return `"` + strings.ToValidUTF8(s, "?") + `"`
}
