package backup

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"writegate/eventlog"
	"writegate/eventlog/frame"
)

// Behind has a restored log be one that another follows: what happened after the
// backup is unknown, so nothing may go on as if it had not happened.
type Behind struct {
	// Place is where the log and its JSONL file go; w is the log's place, links resolved.
	Place func(w string, m *Manifest) (log, jsonl string, err error)
	// Settle is called when all is there and verified, while gates are kept away.
	Settle func(m *Manifest) error
}

// Restore checks the backup in dir and copies it to p. No place of p may hold
// anything yet, but for policy files that are the same. A restore that was cut
// short leaves places that are not empty and no log: remove them and repeat.
// Without behind the log goes on as it was: whoever asks for that knows that nothing
// was written after the backup.
//
// Errors: ErrBackup, ErrLog, ErrBusy, ErrNotEmpty, the file system's, or behind's.
func Restore(ctx context.Context, dir string, p Places, behind *Behind) (m Manifest, err error) {
	if m, err = p.check(ctx, dir, behind != nil); err != nil {
		return m, err
	}
	p.Outside, p.Judged = nil, nil // what is copied is held against the hash of its last event
	if err := makeFolders(filepath.Dir(p.Log)); err != nil {
		return m, err
	}
	w, err := frame.OS{}.RealPath(p.Log)
	if err != nil {
		return m, err
	}
	p.Log = w
	lock, err := lockWriter(ctx, p.Log)
	if err != nil {
		return m, err
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	if err := emptyPlaces(dir, p, &m); err != nil {
		return m, fmt.Errorf("%w. A restore overwrites nothing: remove what one that was cut short left there, and move anything else away", err)
	}
	places := p.ofLog()
	if behind != nil {
		var jsonl string
		if p.aside, jsonl, err = behind.Place(w, &m); err != nil {
			return m, err
		}
		if p.JSONL != "" {
			p.JSONL = jsonl
		}
	}
	err = copyBack(ctx, dir, p, &m)
	if err == nil {
		err = p.verifyCopy(ctx, p.target(logName), &m, false)
	}
	if err != nil {
		left := slices.DeleteFunc(places, func(path string) bool { return mustBeMissing(path) == nil })
		return m, fmt.Errorf("%w. What was copied is no log that a gate may use: remove %s before you repeat this", err, strings.Join(left, ", "))
	}
	if behind == nil {
		return m, frame.MarkHead(frame.OS{}, w+frame.HeadSuffix, true) // it is no copy any more
	}
	return m, behind.Settle(&m)
}

// lockWriter keeps gates away while the files are put in place.
func lockWriter(ctx context.Context, w string) (frame.LockFile, error) {
	lock, err := frame.OS{}.OpenLock(w+frame.LockSuffix, frame.ReadWrite)
	if err != nil {
		return nil, err
	}
	once, cancel := context.WithCancel(ctx)
	cancel()
	if err := lock.Lock(once, frame.WriterByte, frame.Exclusive); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w: a gate is running (%w)", w, ErrBusy, err), lock.Close())
	}
	return lock, nil
}

// Check holds a backup against its manifest and verifies its log, and those before it.
func Check(ctx context.Context, dir string) (m Manifest, err error) {
	return new(Places).check(ctx, dir, false)
}

// check is Check with what is known about the log.
func (p *Places) check(ctx context.Context, dir string, older bool) (m Manifest, err error) {
	b, err := readRegular(filepath.Join(dir, ManifestName), maxManifest)
	if err != nil {
		return m, fmt.Errorf("%w: %w", ErrBackup, err)
	}
	strict := json.NewDecoder(bytes.NewReader(b))
	strict.DisallowUnknownFields()
	if err := strict.Decode(&m); err != nil {
		return m, fmt.Errorf("%w: %s: %w", ErrBackup, ManifestName, err)
	}
	if m.Format != format {
		return m, fmt.Errorf("%w: %s has the format %.40q, not %q", ErrBackup, ManifestName, m.Format, format)
	}
	root, err := os.OpenRoot(dir + "/") // no link in it leads out of it, and a pipe is not waited for
	if err != nil {
		return m, fmt.Errorf("%w: %w", ErrBackup, err)
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	named := map[string]bool{ManifestName: true}
	for _, f := range m.Files {
		if named[f.Path] {
			return m, fmt.Errorf("%w: %s names %q twice", ErrBackup, ManifestName, f.Path)
		}
		if err := f.check(ctx, root); err != nil {
			return m, err
		}
		named[f.Path] = true
	}
	err = filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		inside, relErr := filepath.Rel(dir, path)
		if ofVolume(inside) && e != nil && e.IsDir() {
			return fs.SkipDir
		}
		if err = errors.Join(err, relErr); err == nil && !e.IsDir() && !named[filepath.ToSlash(inside)] {
			err = fmt.Errorf("%w: %s is not in the manifest", ErrBackup, inside)
		}
		return err
	})
	if err != nil {
		return m, err
	}
	return m, p.verifyCopy(ctx, filepath.Join(dir, logName), &m, older)
}

// Nobody signs a manifest, and its paths become names in the places of a gate. So
// they are the ones that Make writes, spelt as it spells them, and no others.
var (
	fileNames   = []string{logName, logName + frame.HeadSuffix, jsonlName}
	folderNames = []string{
		logName + frame.SegmentsSuffix, logName + frame.QuarantineSuffix, logName + frame.RetiredSuffix, logName + frame.CheckpointsSuffix,
		storeName, policiesName,
	}
)

// check holds one file against what the manifest says.
func (f File) check(ctx context.Context, root *os.Root) error {
	known := slices.Contains(fileNames, f.Path) || slices.ContainsFunc(folderNames, func(dir string) bool { return strings.HasPrefix(f.Path, dir+"/") })
	inside, earlier := strings.CutPrefix(f.Path, logName+frame.RetiredSuffix+"/")
	if !known || earlier && !ofEarlierLog(inside) || !filepath.IsLocal(f.Path) || path.Clean(f.Path) != f.Path {
		return fmt.Errorf("%w: a backup has no file %.80q", ErrBackup, f.Path)
	}
	if st, err := root.Stat(f.Path); err == nil && !st.Mode().IsRegular() {
		return fmt.Errorf("%w: %s: %w", ErrBackup, f.Path, frame.ErrNotRegular)
	}
	in, err := openFile(root, f.Path)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrBackup, err)
	}
	sum := sha256.New()
	n, err := io.Copy(sum, reader{ctx, in})
	if err = errors.Join(err, in.Close()); err != nil {
		return err
	}
	if n != f.Bytes || hex.EncodeToString(sum.Sum(nil)) != f.SHA256 {
		return fmt.Errorf("%w: %s is not what the manifest says", ErrBackup, f.Path)
	}
	return nil
}

// openFile opens a file of the backup. A pipe of that name would have it wait for
// ever, so nothing but a regular file is opened.
func openFile(root *os.Root, name string) (*os.File, error) {
	return regular(root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0))
}

// Bounds of what is read whole.
const (
	maxManifest = 256 << 20 // a million files
	maxPolicy   = 16 << 20
)

// readRegular reads a regular file of at most so many bytes.
func readRegular(path string, most int64) ([]byte, error) {
	f, err := openRegular(path)
	if err != nil {
		return nil, err
	}
	b, err := io.ReadAll(io.LimitReader(f, most+1))
	if int64(len(b)) > most {
		err = fmt.Errorf("%s has more than %d bytes", path, most)
	}
	return b, errors.Join(err, f.Close())
}

// target gives where a file of the backup belongs, "" where p has no place, and for
// the store of an older backup.
func (p *Places) target(name string) string {
	if rest, ok := strings.CutPrefix(name, policiesName+"/"); ok && p.Policies != "" {
		return filepath.Join(p.Policies, rest)
	}
	if rest, ok := strings.CutPrefix(name, logName); ok {
		if p.aside != "" && !strings.HasPrefix(rest, frame.RetiredSuffix+"/") {
			return p.aside + rest
		}
		return p.Log + rest
	}
	if name == jsonlName {
		return p.JSONL
	}
	return ""
}

// ofLog are the files and folders of a log and of its JSONL file.
func (p *Places) ofLog() (paths []string) {
	for _, suffix := range []string{"", frame.HeadSuffix, frame.NextSuffix, frame.SegmentsSuffix, frame.QuarantineSuffix, frame.CheckpointsSuffix, frame.RetiredSuffix} {
		paths = append(paths, p.Log+suffix)
	}
	if p.JSONL != "" {
		paths = append(paths, p.JSONL)
	}
	return paths
}

// emptyPlaces refuses to overwrite anything.
func emptyPlaces(dir string, p Places, m *Manifest) error {
	for _, path := range p.ofLog() {
		if err := mustBeMissing(path); err != nil {
			return err
		}
	}
	if p.Store != "" {
		if err := mustBeEmpty(p.Store, eventlog.StaysInside); err != nil {
			return err
		}
	}
	for _, f := range m.Files {
		if !strings.HasPrefix(f.Path, policiesName+"/") || p.Policies == "" {
			continue
		}
		there, err := readRegular(p.target(f.Path), maxPolicy)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		if sum := sha256.Sum256(there); hex.EncodeToString(sum[:]) != f.SHA256 {
			return fmt.Errorf("%s: %w: it differs from the one in %s", p.target(f.Path), ErrNotEmpty, dir)
		}
	}
	return nil
}

func mustBeMissing(path string) error {
	st, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil && st.IsDir() {
		return mustBeEmpty(path, ofVolume)
	}
	if err == nil {
		err = fmt.Errorf("%s: %w", path, ErrNotEmpty)
	}
	return err
}

// copyBack puts all files in place, the log's own last.
func copyBack(ctx context.Context, dir string, p Places, m *Manifest) (err error) {
	root, err := os.OpenRoot(dir + "/") // a pipe in its place is no folder, and is not waited for
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	for _, f := range m.Files {
		to := p.target(f.Path)
		if to == "" || f.Path == logName {
			continue
		}
		err := putBack(ctx, root, f.Path, to)
		if errors.Is(err, fs.ErrExist) && strings.HasPrefix(f.Path, policiesName+"/") {
			continue // it was found to be the same
		}
		if err != nil {
			return err
		}
	}
	log := p.target(logName)
	temp := log + frame.NextSuffix
	if err := putBack(ctx, root, logName, temp); err != nil {
		return err
	}
	if err := os.Rename(temp, log); err != nil {
		return err
	}
	return frame.OS{}.SyncDir(filepath.Dir(log))
}

// makeFolders is os.MkdirAll with durable names.
func makeFolders(dir string) error {
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := makeFolders(filepath.Dir(dir)); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	return frame.OS{}.SyncDir(filepath.Dir(dir))
}

// putBack copies one file to a place where there is none, durably.
func putBack(ctx context.Context, root *os.Root, from, to string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := makeFolders(filepath.Dir(to)); err != nil {
		return err
	}
	in, err := openFile(root, from)
	if err != nil {
		return err
	}
	if err = errors.Join(writeSynced(ctx, to, in, nil), in.Close()); err != nil {
		return err
	}
	return frame.OS{}.SyncDir(filepath.Dir(to))
}
