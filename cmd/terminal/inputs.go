package terminal

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"writegate/eventlog/checkpoint"
	"writegate/eventlog/evidence"
	"writegate/eventlog/frame"
)

// Bounds of what is read whole.
const (
	maxPapers    = 64 << 20 // bytes of one file of receipts
	maxReceipts  = 1 << 18  // in one file: more than right ones have room for
	maxNoteFiles = 1 << 20  // checkpoints beside a log
	// All of those are held at once: small ones in any number, and of large ones a few.
	noteBytes     = 16 << 20
	noteBytesEach = 2 << 10
)

// KeyUsage describes the flag whose values Keys reads.
const KeyUsage = "public key to trust: a vkey, the raw key in base64, or a PEM file; may be repeated"

// Keys reads each value of --key: a verifier key, the raw key in base64, or a
// file that holds a key. Its errors are mistakes of the caller.
func Keys(values []string) ([]checkpoint.PublicKey, error) {
	var keys []checkpoint.PublicKey
	for _, v := range values {
		key, err := checkpoint.ParsePublicKey([]byte(v))
		if err != nil {
			var fileErr error
			if key, fileErr = checkpoint.LoadPublicKey(v); fileErr != nil {
				return nil, fmt.Errorf("--key %.80s: neither a key (%w) nor a file with one (%w)", v, err, fileErr)
			}
		}
		keys = append(keys, key)
	}
	return keys, nil
}

// Inputs are the files that a person names; "-" is Stdin.
type Inputs struct{ Stdin io.Reader }

// Open opens a file. size is 0 where it is not known.
func (i Inputs) Open(file string) (in io.ReadCloser, size int64, err error) {
	if file == "-" {
		return io.NopCloser(i.Stdin), 0, nil
	}
	f, size, err := OpenFile(file)
	if err != nil {
		return nil, 0, err
	}
	return f, size, nil
}

// OpenFile opens a file that a person named, for reading. A named pipe is
// refused, since whoever opens one may wait for ever for its other end; what a
// shell puts in the place of a command's output, such as /dev/fd/63, is read. size is 0
// where it is not known.
func OpenFile(file string) (f *os.File, size int64, err error) {
	f, err = os.OpenFile(file, os.O_RDONLY|unix.O_NONBLOCK, 0) // a pipe is not waited for
	if err != nil {
		return nil, 0, err
	}
	info, err := f.Stat()
	switch {
	case err != nil:
	case info.IsDir():
		err = fmt.Errorf("%s is a folder", file)
	case !info.Mode().IsRegular() && file != "/dev/stdin" && filepath.Dir(file) != "/dev/fd" && filepath.Dir(file) != "/proc/self/fd":
		err = fmt.Errorf("%s is not a regular file", file)
	}
	if err != nil {
		return nil, 0, errors.Join(err, f.Close())
	}
	return f, info.Size(), nil
}

// ReadWhole reads an input of at most limit bytes.
func (i Inputs) ReadWhole(file string, limit int64) (_ []byte, err error) {
	in, _, err := i.Open(file)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, in.Close()) }()
	b, err := io.ReadAll(io.LimitReader(in, limit+1))
	if err == nil && int64(len(b)) > limit {
		err = fmt.Errorf("%s is longer than %d bytes", file, limit)
	}
	return b, err
}

// Receipts reads those of a file, or of every file in a folder and below: one a line. A
// link to a file is one; what is neither file nor folder can't be read, and that is said.
func (i Inputs) Receipts(path string) ([]evidence.Paper, error) {
	files := []string{path}
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		files = files[:0]
		err := filepath.WalkDir(path, func(file string, e fs.DirEntry, err error) error {
			if err == nil && !e.IsDir() {
				files = append(files, file)
			}
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	var papers []evidence.Paper
	for _, file := range files {
		b, err := i.ReadWhole(file, maxPapers)
		if err != nil {
			return nil, err
		}
		found, err := lines(file, b)
		if err != nil {
			return nil, err
		}
		papers = append(papers, found...)
	}
	if len(papers) == 0 {
		return nil, fmt.Errorf("%s holds no receipt", path)
	}
	return papers, nil
}

// lines gives the lines of a file that hold something. White space around them
// is what mail and terminals add, and no part of a receipt.
func lines(file string, b []byte) (papers []evidence.Paper, err error) {
	n := 0
	for line := range strings.Lines(string(b)) {
		n++
		if text := strings.Trim(line, "\t\n\v\f\r "); text != "" {
			if len(papers) == maxReceipts {
				return nil, fmt.Errorf("%s has more than %d lines that hold something", file, maxReceipts)
			}
			papers = append(papers, evidence.Paper{Name: fmt.Sprintf("%s:%d", file, n), Text: text})
		}
	}
	return papers, nil
}

// Kept reads what a log is to be held against: receipts (files, or folders of
// files) and checkpoints that were named, and the checkpoints beside the log.
// What can't be read is in the papers, for the report.
func (i Inputs) Kept(wal string, receipts, notes []string, keys []checkpoint.PublicKey) (o evidence.Outside, err error) {
	o.Keys = keys
	for _, path := range receipts {
		found, err := i.Receipts(path)
		if err != nil {
			found = []evidence.Paper{{Name: path, Err: err}}
		}
		for _, p := range found {
			p.Asked = true
			o.Receipts = append(o.Receipts, p)
		}
	}
	beside, err := notesBeside(wal)
	if err != nil { // the log can be judged without them, and something was not
		o.Notes = append(o.Notes, evidence.Paper{Name: wal + frame.CheckpointsSuffix, Err: err})
	}
	left := noteBytes + noteBytesEach*int64(len(beside))
	for n, file := range append(beside, notes...) {
		limit := int64(checkpoint.MaxNote)
		if n < len(beside) {
			limit = min(limit, left)
		}
		b, err := i.ReadWhole(file, limit)
		if n < len(beside) {
			left -= min(int64(len(b)), left)
		}
		if err != nil {
			b = nil
		}
		o.Notes = append(o.Notes, evidence.Paper{Name: file, Text: string(b), Asked: n >= len(beside), Err: err})
	}
	return o, nil
}

// notesBeside names the checkpoints that lie beside a log, those that it finds where an
// error says that it could not look everywhere.
func notesBeside(wal string) (beside []string, err error) {
	real, err := frame.OS{}.RealPath(wal)
	if err != nil {
		return nil, nil // nobody knows what lies beside it, and Discover says why
	}
	root := real + frame.CheckpointsSuffix // they lie beside the log itself, not beside a link to it
	segments, err := os.ReadDir(root)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	for _, segment := range segments {
		dir := filepath.Join(root, segment.Name())
		info, statErr := os.Stat(dir)
		if statErr != nil || !info.IsDir() {
			err = errors.Join(err, statErr)
			continue
		}
		notes, listErr := os.ReadDir(dir)
		err = errors.Join(err, listErr)
		for _, note := range notes {
			if strings.HasSuffix(note.Name(), ".note") {
				beside = append(beside, filepath.Join(dir, note.Name()))
			}
		}
	}
	if err != nil {
		err = fmt.Errorf("the checkpoints beside the log can't all be read: %w", err)
	}
	slices.Sort(beside)
	if len(beside) > maxNoteFiles {
		return beside[:maxNoteFiles], errors.Join(err, fmt.Errorf("%d checkpoints lie beside the log, more than %d", len(beside), maxNoteFiles))
	}
	return beside, err
}
