package checkpoint

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// A Folder keeps the notes of a log: one file for each size, in a folder for
// each segment, so that old ones can be moved away with their segment. Files
// are added and gain cosignatures; what they say never changes.
type Folder struct{ path string }

// NewFolder names the folder, W.checkpoints beside a log W. It is made by the
// first Store.
func NewFolder(path string) Folder { return Folder{path} }

const (
	noteSuffix    = ".note"
	newSuffix     = ".new" // a note that is being written
	segmentDigits = 6
	sizeDigits    = 20
)

// A Stored is a note that lies in a Folder; its name says only where to look.
type Stored struct {
	Segment uint32
	Size    uint64
	Path    string
}

// Store makes n durable, under the number of the segment that holds event
// n.Size. A note that lies there already may only gain signatures: another
// statement about the same size is ErrRewritten. The folder that the Folder
// lies in has to exist and to be durable itself, as that of a log is.
func (f Folder) Store(segment uint32, n *Note) error {
	dir := filepath.Join(f.path, fmt.Sprintf("%0*d", segmentDigits, segment))
	path := filepath.Join(dir, fmt.Sprintf("%0*d%s", sizeDigits, n.Size, noteSuffix))
	if err := onlyGrows(path, n); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if err := replace(path, n.Raw); err != nil {
		return err
	}
	// Always both: a process that died may have made them and not synced.
	return errors.Join(syncFolder(f.path), syncFolder(filepath.Dir(f.path)))
}

// onlyGrows holds a note against the one that it replaces, line by line.
func onlyGrows(path string, n *Note) error {
	old, err := readNote(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if !bytes.HasPrefix(old, []byte(n.Text()+"\n")) {
		return fmt.Errorf("%w: %s says another thing about %d events", ErrRewritten, path, n.Size)
	}
	have := strings.SplitAfter(string(n.Raw), "\n")
	for line := range strings.SplitAfterSeq(string(old), "\n") {
		if !slices.Contains(have, line) {
			return fmt.Errorf("a signature of %s would be lost: %.80q", path, line)
		}
	}
	return nil
}

// replace writes a file of which a crash leaves the old or the new content.
func replace(path string, content []byte) error {
	// What a crash left is removed, not opened: a pipe would be waited for, a link followed.
	if err := os.Remove(path + newSuffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(path+newSuffix, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(path+newSuffix, path); err != nil {
		return err
	}
	return syncFolder(filepath.Dir(path))
}

// List gives the notes that lie in the folder by size, and nothing where there
// is no folder. What is not named like a note is passed over.
func (f Folder) List() ([]Stored, error) {
	segments, err := f.segments()
	if err != nil {
		return nil, err
	}
	var list []Stored
	for _, s := range segments {
		notes, err := f.notes(s)
		if err != nil {
			return nil, err
		}
		list = append(list, notes...)
	}
	slices.SortFunc(list, bySize)
	return list, nil
}

// Others counts the notes that lie there besides those of List, under names that no gate gives.
func (f Folder) Others(listed []Stored) int {
	all, _ := fs.Glob(os.DirFS(f.path), "*/*"+noteSuffix) // the pattern is right
	return len(all) - len(listed)
}

func bySize(a, b Stored) int {
	switch {
	case a.Size != b.Size && a.Size < b.Size:
		return -1
	case a.Size != b.Size:
		return 1
	}
	return strings.Compare(a.Path, b.Path)
}

// segments gives the numbers of the folder's folders, ascending.
func (f Folder) segments() ([]uint32, error) {
	entries, err := os.ReadDir(f.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var segments []uint32
	for _, e := range entries {
		n, ok := digits(e.Name(), segmentDigits)
		if !ok {
			continue
		}
		info, err := os.Stat(filepath.Join(f.path, e.Name())) // where it is a link, of what it leads to
		if err != nil {
			return nil, err
		}
		if info.IsDir() {
			segments = append(segments, uint32(n))
		}
	}
	return segments, nil
}

// notes gives the notes of a segment's folder, ascending.
func (f Folder) notes(segment uint32) ([]Stored, error) {
	dir := filepath.Join(f.path, fmt.Sprintf("%0*d", segmentDigits, segment))
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var list []Stored
	for _, e := range entries {
		name, ok := strings.CutSuffix(e.Name(), noteSuffix)
		if !ok {
			continue
		}
		if size, ok := digits(name, sizeDigits); ok && size <= MaxSize {
			list = append(list, Stored{segment, size, filepath.Join(dir, e.Name())})
		}
	}
	return list, nil
}

// digits reads a number of so many digits.
func digits(text string, n int) (uint64, bool) {
	if len(text) != n || strings.Trim(text, "0123456789") != "" {
		return 0, false
	}
	v, err := strconv.ParseUint(text, 10, 64)
	return v, err == nil
}

// Read gives the note as it lies there, unchecked: a regular file of at most
// MaxNote bytes.
func (s Stored) Read() ([]byte, error) { return readNote(s.Path) }

// Open reads a note and checks it as the function Open does. A note that is of
// another size than its file's name says is ErrMalformed.
func (s Stored) Open(keys Keys) (*Note, error) {
	raw, err := s.Read()
	if err != nil {
		return nil, err
	}
	n, err := Open(raw, keys)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.Path, err)
	}
	if n.Size != s.Size {
		return nil, fmt.Errorf("%w: %s is of %d events", ErrMalformed, s.Path, n.Size)
	}
	return n, nil
}

// Newest gives the trusted note of the largest size, nil where there is none:
// what a Signer has to continue. Untrusted ones are passed over. One that can't
// be read or whose signature is wrong is an error, because what it once said
// could then be contradicted.
func (f Folder) Newest(keys Keys) (*Note, error) {
	list, err := f.List()
	if err != nil {
		return nil, err
	}
	for _, s := range slices.Backward(list) {
		n, err := s.Open(keys)
		if err != nil {
			return nil, err
		}
		if n.Trusted {
			return n, nil
		}
	}
	return nil, nil
}

// readNote reads a note's file.
func readNote(path string) ([]byte, error) {
	raw, _, err := readRegular(path, MaxNote, ErrMalformed)
	return raw, err
}
