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
	maxPapers    = 64 << 20 // bytes of one file of receipts, or of all in one folder
	maxReceipts  = 1 << 18  // in them: more than right ones have room for
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

// Receipts reads those of a file, or of every file in a folder and below: one a line. What
// can't be read in a folder is a paper of which that is known, and hides no other one.
func (i Inputs) Receipts(path string) (papers []evidence.Paper, err error) {
	if info, err := os.Stat(path); err != nil || !info.IsDir() {
		if papers, _, err = i.receiptsOf(path, maxPapers, maxReceipts); err != nil {
			return nil, err
		}
	} else if papers, err = i.receiptsBelow(path); err != nil {
		return nil, err
	}
	if len(papers) == 0 {
		return nil, fmt.Errorf("%s holds no receipt", path)
	}
	return papers, nil
}

// receiptsBelow reads those of a folder, in the order of the bytes of their paths. A link
// counts as what it leads to, and none is followed to a folder.
func (i Inputs) receiptsBelow(folder string) (papers []evidence.Paper, err error) {
	var files []string
	err = filepath.WalkDir(folder+"/", func(file string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			papers = append(papers, evidence.Paper{Name: file, Err: err})
		case !e.IsDir():
			files = append(files, file)
		}
		return nil
	})
	slices.Sort(files)
	bytesLeft, linesLeft := int64(maxPapers), maxReceipts
	for _, file := range files {
		found, size, err := i.receiptsOf(file, bytesLeft, linesLeft)
		if err != nil {
			papers = append(papers, evidence.Paper{Name: file, Err: err})
			continue
		}
		bytesLeft, linesLeft = bytesLeft-size, linesLeft-len(found)
		papers = append(papers, found...)
	}
	return papers, err
}

// receiptsOf gives the lines of a file that hold something, and its size. White space around
// them is what mail and terminals add, and no part of a receipt.
func (i Inputs) receiptsOf(file string, bytes int64, lines int) (papers []evidence.Paper, size int64, err error) {
	b, err := i.ReadWhole(file, bytes)
	if err != nil {
		return nil, 0, err
	}
	n := 0
	for line := range strings.Lines(string(b)) {
		n++
		if text := strings.Trim(line, "\t\n\v\f\r "); text != "" {
			if len(papers) == lines {
				return nil, 0, fmt.Errorf("%s has more than %d lines that hold something", file, lines)
			}
			papers = append(papers, evidence.Paper{Name: fmt.Sprintf("%s:%d", file, n), Text: text})
		}
	}
	return papers, int64(len(b)), nil
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
