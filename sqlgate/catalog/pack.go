package catalog

import (
	"bytes"
	"compress/flate"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"

	"writegate/sqlgate/classify"
)

// What is kept of a snapshot is packed: DEFLATE over lines, each ended by a line feed. A line
// that begins with { is one of what the hash covers. In a difference =N stands for the next N
// lines of the base, and -N for N of its lines that are not there; a whole has neither.

// mostContent bounds what may be unpacked: a log may come from anybody.
const mostContent = 1 << 30

// Packed is all that the hash covers, packed. It is shared and must not be changed.
func (s *Snapshot) Packed() []byte { return s.packed }

// Difference gives what Unpack, with the content of the one packed whole, makes that of the other of.
func Difference(base, whole []byte) ([]byte, error) {
	from, err := Unpack(base, nil)
	if err != nil {
		return nil, err
	}
	to, err := Unpack(whole, nil)
	if err != nil {
		return nil, err
	}
	at, lines := map[string]int{}, 0
	for line := range bytes.Lines(from) {
		if _, known := at[string(line)]; !known {
			at[string(line)] = lines
		}
		lines++
	}
	var p packer
	next, same := 0, 0 // line of the base; how many of those before it are kept and not yet written
	keep := func() {
		if same > 0 {
			p.write(fmt.Appendf(nil, "=%d\n", same))
		}
		same = 0
	}
	leave := func(until int) {
		if until > next {
			keep()
			p.write(fmt.Appendf(nil, "-%d\n", until-next))
		}
		next = until
	}
	for line := range bytes.Lines(to) {
		if i, known := at[string(line)]; known && i >= next {
			leave(i)
			next, same = i+1, same+1
		} else {
			keep()
			p.write(line)
		}
	}
	keep()
	return p.packed()
}

// Unpack gives the content: the lines that the hash covers. base is the content that a difference is to;
// nil for a whole.
func Unpack(packed, base []byte) ([]byte, error) {
	script, err := io.ReadAll(io.LimitReader(flate.NewReader(bytes.NewReader(packed)), mostContent+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("catalog: %w", err)
	case len(script) > mostContent:
		return nil, errors.New("catalog: there is more of it than can be read")
	}
	if base == nil && !bytes.HasPrefix(script, []byte("=")) && !bytes.HasPrefix(script, []byte("-")) {
		return script, nil
	}
	var content []byte
	for line := range bytes.Lines(script) {
		if line[0] == '{' {
			content = append(content, line...)
			continue
		}
		n, err := strconv.Atoi(string(bytes.TrimSuffix(line[1:], []byte("\n"))))
		if err != nil || n < 1 || line[0] != '=' && line[0] != '-' {
			return nil, errors.New("catalog: it holds a line that means nothing")
		}
		end := 0
		for ; n > 0; n-- {
			length := bytes.IndexByte(base[end:], '\n') + 1
			if length == 0 {
				return nil, errors.New("catalog: it is the difference to another one")
			}
			end += length
		}
		if line[0] == '=' {
			content = append(content, base[:end]...)
		}
		if base = base[end:]; len(content) > mostContent {
			return nil, errors.New("catalog: there is more of it than can be read")
		}
	}
	return content, nil
}

// Parse makes a snapshot of content, as New does.
func Parse(content []byte, definition func(sql string) (classify.Classification, error)) (*Snapshot, error) {
	var entries []Entry
	for line := range bytes.Lines(content) {
		var e Entry
		if err := json.Unmarshal(line, &e); err != nil {
			return nil, fmt.Errorf("catalog: line %d: %w", len(entries)+1, err)
		}
		entries = append(entries, e)
	}
	return New(entries, definition)
}

// A packer packs lines. Its zero value is ready.
type packer struct {
	buf bytes.Buffer
	out *flate.Writer
	err error
}

func (p *packer) write(line []byte) {
	if p.out == nil {
		p.out, p.err = flate.NewWriter(&p.buf, flate.BestSpeed)
	}
	if p.err == nil {
		_, p.err = p.out.Write(line)
	}
}

func (p *packer) packed() ([]byte, error) {
	if p.write(nil); p.err == nil {
		p.err = p.out.Close()
	}
	return bytes.Clone(p.buf.Bytes()), p.err
}
