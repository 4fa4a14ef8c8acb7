package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// othersBits are the rights of other accounts. What the gate keeps (statements,
// rows, decisions) is for its own.
const othersBits = 0o077

// mostNamed bounds the paths that one line of the log names.
const mostNamed = 20

// makePrivate looks for files and folders of the gate's own that other accounts
// may use, made by an older version or changed since, and takes the rights away.
// It says what it did once; what is not ours to change is said, and left.
func (g *service) makePrivate() {
	var mended, left []string
	for _, place := range g.settings.ownPlaces() {
		m, l := takeFromOthers(place)
		mended, left = append(mended, m...), append(left, l...)
	}
	if len(mended) > 0 {
		g.loose = fmt.Sprintf("%d of the gate's files and folders could be used by other accounts of this host; their rights were taken away: %s", len(mended), namedPaths(mended))
		g.log.Warn(g.loose+". Whoever could read them may have", "source", "gate")
	}
	if len(left) > 0 {
		g.log.Warn(fmt.Sprintf("%d of the gate's files and folders can be used by other accounts of this host, and this one may not change that: %s", len(left), namedPaths(left)), "source", "gate")
	}
}

func namedPaths(paths []string) string {
	if over := len(paths) - mostNamed; over > 0 {
		return strings.Join(paths[:mostNamed], ", ") + fmt.Sprintf(" and %d more", over)
	}
	return strings.Join(paths, ", ")
}

// ownPlaces are the files and folders that the gate makes and keeps. The folders
// they lie in belong to the operator.
func (s *settings) ownPlaces() []string {
	places := []string{s.indexPath()}
	if _, err := os.Lstat(filepath.Join(s.PolicyDir, s.PolicyManifest)); err == nil { // without it the folder may be anybody's, named by mistake
		places = append(places, s.PolicyDir)
	}
	for _, path := range []string{s.AuditWALPath, s.AuditLogPath, s.ApprovalDBPath} {
		if real, err := followed(path); err == nil {
			path = real
		}
		places = append(places, path)
		if entries, err := os.ReadDir(filepath.Dir(path)); err == nil { // what is made beside it: head, segments, what was put aside
			for _, e := range entries {
				if strings.HasPrefix(e.Name(), filepath.Base(path)+".") {
					places = append(places, filepath.Join(filepath.Dir(path), e.Name()))
				}
			}
		}
	}
	return places
}

// errForeignLink says that another account made a link.
var errForeignLink = errors.New("a link that another account made")

// followed gives the place that a link leads to, if this account or root made the
// link: in a folder where others may write, a link of theirs could lead to
// anything that is ours.
func followed(place string) (string, error) {
	info, err := os.Lstat(place)
	if err != nil || info.Mode()&fs.ModeSymlink == 0 {
		return place, err
	}
	if st, ok := info.Sys().(*syscall.Stat_t); !ok || st.Uid != 0 && int(st.Uid) != os.Geteuid() {
		return place, errForeignLink
	}
	return filepath.EvalSymlinks(place)
}

// takeFromOthers goes through a file, or a folder with all in it but what a name that begins
// with a dot hides and what a volume has at its root: no file of ours. Links in it are not followed.
func takeFromOthers(place string) (mended, left []string) {
	real, err := followed(place)
	if errors.Is(err, errForeignLink) {
		return nil, []string{fmt.Sprintf("%s (%v)", place, err)}
	}
	if err == nil {
		place = real
	}
	_ = filepath.WalkDir(place, func(path string, e fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil:
			left = append(left, fmt.Sprintf("%s (%v)", path, err))
			return nil
		case path != place && (strings.HasPrefix(e.Name(), ".") || e.Name() == "lost+found"):
			if e.IsDir() {
				return fs.SkipDir
			}
			return nil
		case !e.IsDir() && !e.Type().IsRegular():
			return nil
		}
		info, err := e.Info()
		if err != nil || info.Mode().Perm()&othersBits == 0 {
			return nil // gone since, or fine
		}
		what := fmt.Sprintf("%s (%04o)", path, info.Mode().Perm())
		if err := takeOne(path, info); err != nil {
			left = append(left, what)
			return nil
		}
		mended = append(mended, what)
		return nil
	})
	return mended, left
}

// takeOne changes the rights of what was looked at, and of nothing that has come
// into its place.
func takeOne(path string, seen fs.FileInfo) error {
	if st, ok := seen.Sys().(*syscall.Stat_t); !ok || int(st.Uid) != os.Geteuid() {
		return fs.ErrPermission
	}
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if !os.SameFile(info, seen) {
		return fs.ErrNotExist
	}
	return f.Chmod(info.Mode().Perm() &^ othersBits)
}
