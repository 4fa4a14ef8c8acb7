package controlplane

import (
	"bytes"
	"fmt"
	"regexp"
	"unicode"
	"unicode/utf8"

	"writegate/sqlgate/lookalike"
)

// unseen tells of a character that shows nothing itself and may change how what is
// around it is read: what lookalike.Invisible knows, line separators and controls.
func unseen(r rune) bool {
	return r >= 0x80 && (lookalike.Invisible(r) || unicode.In(r, unicode.Cc, unicode.Zl, unicode.Zp))
}

// typed are the places of a page whose text is sent back as it is: fields of forms.
// Data has neither < nor " there, which the templates escape.
var typed = regexp.MustCompile(`(?s)<textarea[ >].*?</textarea>|\svalue="[^"]*"`)

// writeOut puts the number of each unseen character in its place: names and claims
// come from anybody, and must not be read otherwise than they are. Templates hold no
// such characters, so each one is data.
func writeOut(html []byte) []byte {
	if !bytes.ContainsFunc(html, unseen) {
		return html
	}
	var out []byte
	from := 0
	write := func(part []byte) {
		for len(part) > 0 {
			r, n := utf8.DecodeRune(part)
			if unseen(r) {
				out = fmt.Appendf(out, "[U+%04X]", r)
			} else {
				out = append(out, part[:n]...)
			}
			part = part[n:]
		}
	}
	for _, at := range typed.FindAllIndex(html, -1) {
		write(html[from:at[0]])
		out = append(out, html[at[0]:at[1]]...)
		from = at[1]
	}
	write(html[from:])
	return out
}
