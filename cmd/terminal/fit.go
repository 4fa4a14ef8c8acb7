package terminal

import (
	"bytes"
	"io"
	"os"
	"unicode/utf8"

	"golang.org/x/term"
)

// Fit cuts the lines of a table to the width of the terminal that w is, with … at the
// cut, since lines that wrap can't be read as a table. What is no terminal gets all.
func Fit(w io.Writer) io.Writer {
	width := Width(w)
	if width < 2 {
		return w
	}
	return &fitted{w: w, width: width}
}

// Width is that of the terminal that w is, in characters; 0: it is none.
func Width(w io.Writer) int {
	f, ok := w.(*os.File)
	if !ok {
		return 0
	}
	width, _, err := term.GetSize(int(f.Fd()))
	if err != nil {
		return 0
	}
	return width
}

type fitted struct {
	w     io.Writer
	width int
	line  []byte // what has no end yet
}

// Write implements io.Writer.
func (f *fitted) Write(p []byte) (int, error) {
	f.line = append(f.line, p...)
	for {
		line, rest, ended := bytes.Cut(f.line, []byte("\n"))
		if !ended {
			return len(p), nil
		}
		if utf8.RuneCount(line) > f.width {
			line = []byte(string([]rune(string(line))[:f.width-1]) + "…")
		}
		if _, err := f.w.Write(append(bytes.Clone(line), '\n')); err != nil {
			return 0, err
		}
		f.line = bytes.Clone(rest)
	}
}
