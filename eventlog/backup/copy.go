package backup

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"writegate/eventlog/frame"
)

// copier writes files below a folder and notes what it wrote.
type copier struct {
	ctx   context.Context
	root  string
	files []File
}

// read copies the first n bytes of an open file of the log.
func (c *copier) read(name string, f frame.File, n int64) error {
	if f == nil {
		return fmt.Errorf("%s: %w", name, fs.ErrNotExist)
	}
	return c.write(name, io.NewSectionReader(readerAt{f}, 0, n))
}

type readerAt struct{ frame.File }

// ReadAt implements io.ReaderAt; Pread has the same rules.
func (r readerAt) ReadAt(b []byte, off int64) (int, error) { return r.Pread(b, off) }

// write makes one file of the backup, synced.
func (c *copier) write(name string, from io.Reader) error {
	if err := c.ctx.Err(); err != nil {
		return err
	}
	path := filepath.Join(c.root, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	sum, counted := sha256.New(), &counter{r: from}
	if err := writeSynced(c.ctx, path, counted, sum); err != nil {
		return err
	}
	c.files = append(c.files, File{Path: name, Bytes: counted.n, SHA256: hex.EncodeToString(sum.Sum(nil))})
	return nil
}

// A reader ends with its context: a file may be terabytes of zeros.
type reader struct {
	ctx context.Context
	r   io.Reader
}

func (r reader) Read(b []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.r.Read(b)
}

type counter struct {
	r io.Reader
	n int64
}

func (c *counter) Read(b []byte) (int, error) {
	n, err := c.r.Read(b)
	c.n += int64(n)
	return n, err
}

// writeSynced makes a file that must not exist yet; sum may be nil.
func writeSynced(ctx context.Context, path string, from io.Reader, sum hash.Hash) (err error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	to := io.Writer(f)
	if sum != nil {
		to = io.MultiWriter(f, sum)
	}
	if _, err := io.Copy(to, reader{ctx, from}); err != nil {
		return err
	}
	return f.Sync()
}

// tree copies the regular files below a folder that pass the filter, which is given
// their path in it; a folder that is not there is an empty one.
func (c *copier) tree(name, from string, want func(inside string) bool) error {
	if _, err := os.Stat(from); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	root, err := filepath.EvalSymlinks(from)
	if err != nil {
		return err
	}
	return filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		inside, err := filepath.Rel(root, path)
		if err != nil || want != nil && !want(inside) {
			return err
		}
		return c.copyFile(filepath.ToSlash(filepath.Join(name, inside)), path)
	})
}

func (c *copier) copyFile(name, path string) error {
	st, err := os.Stat(path) // a link counts as what it names
	if err != nil {
		return err
	}
	if st.IsDir() {
		return nil // a link to a folder: what it names is copied where it lies
	}
	f, err := openRegular(path)
	if err != nil {
		return err
	}
	return errors.Join(c.write(name, f), f.Close())
}

// openRegular opens a regular file, through links. A pipe is not waited for.
func openRegular(path string) (*os.File, error) {
	return regular(os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0))
}

// regular closes again what was opened and is no regular file.
func regular(f *os.File, err error) (*os.File, error) {
	if err != nil {
		return nil, err
	}
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return nil, errors.Join(fmt.Errorf("%s: %w", f.Name(), frame.ErrNotRegular), err, f.Close())
	}
	return f, nil
}

// jsonl copies the lines of the JSONL file up to the last event of the backup.
// The file is no evidence: a line that is none ends the copy, and the next start
// writes the rest from the log.
func (c *copier) jsonl(path string, last uint64) error {
	if path == "" {
		return nil
	}
	f, err := openRegular(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return errors.Join(c.write(jsonlName, &lines{r: bufio.NewReaderSize(reader{c.ctx, f}, 1<<16), last: last}), f.Close())
}

// lines reads whole lines whose events are not after last.
type lines struct {
	r    *bufio.Reader
	last uint64
	line []byte
}

func (l *lines) Read(b []byte) (int, error) {
	for len(l.line) == 0 {
		line, err := l.r.ReadBytes('\n')
		if err != nil {
			return 0, err // a torn line at the end is left out
		}
		if seq, ok := seqOf(line); !ok || seq > l.last {
			return 0, io.EOF
		}
		l.line = line
	}
	n := copy(b, l.line)
	l.line = l.line[n:]
	return n, nil
}

// seqOf reads the first member of a line.
func seqOf(line []byte) (uint64, bool) {
	rest, ok := bytes.CutPrefix(line, []byte(`{"seq":`))
	digits, _, found := bytes.Cut(rest, []byte(","))
	seq, err := strconv.ParseUint(string(digits), 10, 64)
	return seq, ok && found && err == nil
}

// syncFolders makes the names in a folder and below it durable.
func syncFolders(root string) error {
	return filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.IsDir() {
			return err
		}
		if path == filepath.Join(root, e.Name()) && ofVolume(e.Name()) {
			return fs.SkipDir
		}
		return frame.OS{}.SyncDir(path)
	})
}
