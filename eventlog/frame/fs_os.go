package frame

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Files of the log are for the service's own account; folders likewise.
const (
	filePerm = 0o600
	dirPerm  = 0o700
)

// lockPoll is the pause between two tries for a range that is taken. Ranges
// are held for moments (structure) or for a process's life (writer), so a
// shorter pause would gain nothing.
const lockPoll = 5 * time.Millisecond

// OS is the file system of the host. The zero value is ready to use.
type OS struct{}

var _ FS = OS{}

// Open implements FS. O_NONBLOCK keeps a pipe from hanging the open; regular
// files ignore it.
func (OS) Open(name string, mode Mode) (File, error) {
	flags := unix.O_RDONLY
	if mode == ReadWrite {
		flags = unix.O_RDWR
	}
	return openFile(name, flags)
}

// Create implements FS.
func (OS) Create(name string) (File, error) {
	return openFile(name, unix.O_RDWR|unix.O_CREAT|unix.O_TRUNC)
}

func openFile(name string, flags int) (File, error) {
	fd, err := openFD(name, flags|unix.O_NONBLOCK)
	if err != nil {
		return nil, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, errors.Join(opErr("fstat", name, err), closeFD(fd, name))
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, errors.Join(opErr("open", name, ErrNotRegular), closeFD(fd, name))
	}
	return &osFile{fd: fd, name: name}, nil
}

func openFD(name string, flags int) (int, error) {
	var fd int
	err := retry(func() (err error) {
		fd, err = unix.Open(name, flags|unix.O_CLOEXEC, filePerm)
		return err
	})
	return fd, opErr("open", name, err)
}

// Rename implements FS.
func (OS) Rename(from, to string) error { return os.Rename(from, to) }

// Remove implements FS.
func (OS) Remove(name string) error { return os.Remove(name) }

// MkdirAll implements FS.
func (OS) MkdirAll(dir string) error { return os.MkdirAll(dir, dirPerm) }

// List implements FS.
func (OS) List(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir) // sorted
	if err != nil {
		return nil, err
	}
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	return names, nil
}

// OpenDir implements FS.
func (OS) OpenDir(dir string) (Dir, error) {
	fd, err := openFD(dir, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return nil, err
	}
	return &osFile{fd: fd, name: dir}, nil
}

// Stat implements FS.
func (OS) Stat(name string) (Info, error) {
	var st unix.Stat_t
	if err := retry(func() error { return unix.Stat(name, &st) }); err != nil {
		return Info{}, opErr("stat", name, err)
	}
	return Info{Dev: uint64(st.Dev), Ino: st.Ino, Size: st.Size, Written: st.Mtim.Nano()}, nil
}

// SyncDir implements FS.
func (o OS) SyncDir(dir string) error {
	d, err := o.OpenDir(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// RealPath implements FS.
func (o OS) RealPath(name string) (string, error) {
	abs := name
	if !filepath.IsAbs(name) {
		dir, err := os.Getwd()
		if err != nil {
			return "", err
		}
		abs = dir + "/" + name
	}
	// What the system can't open is no log, whatever its links could be followed to.
	if _, err := os.Stat(abs); err != nil && (!errors.Is(err, fs.ErrNotExist) || strings.HasSuffix(abs, "/")) {
		return "", err
	}
	abs = "/" + strings.Trim(abs, "/")
	// The text is not cleaned: ".." behind a link leads to where the link's target lies.
	real, err := filepath.EvalSymlinks(abs)
	if !errors.Is(err, fs.ErrNotExist) {
		return real, err
	}
	above, base := filepath.Split(abs)
	dir, err := filepath.EvalSymlinks(above)
	if err != nil {
		return "", err
	}
	// A link whose target is missing names it all the same: for a moment of each
	// rotation there is no active segment.
	if target, err := os.Readlink(abs); err == nil {
		if !filepath.IsAbs(target) {
			target = dir + "/" + target
		}
		return o.RealPath(target)
	}
	return filepath.Join(dir, base), nil
}

// Magic numbers of statfs(2) that x/sys has no name for.
const (
	magicZFS   = 0x2fc12fc1
	magicFuse  = 0x65735546
	magicCIFS  = 0xff534d42
	magicSMB2  = 0xfe534d42
	magicCeph  = 0x00c36400
	magicGFS2  = 0x01161970
	magicOCFS2 = 0x7461636f
)

var volumes = map[uint32]Volume{
	unix.EXT4_SUPER_MAGIC:      {Kind: "ext4"},
	unix.XFS_SUPER_MAGIC:       {Kind: "xfs"},
	unix.BTRFS_SUPER_MAGIC:     {Kind: "btrfs"},
	unix.F2FS_SUPER_MAGIC:      {Kind: "f2fs"},
	magicZFS:                   {Kind: "zfs"},
	unix.TMPFS_MAGIC:           {Kind: "tmpfs", Volatile: true},
	unix.RAMFS_MAGIC:           {Kind: "ramfs", Volatile: true},
	unix.OVERLAYFS_SUPER_MAGIC: {Kind: "overlay", Volatile: true},
	unix.NFS_SUPER_MAGIC:       {Kind: "nfs", Network: true},
	unix.SMB_SUPER_MAGIC:       {Kind: "smb", Network: true},
	unix.AFS_SUPER_MAGIC:       {Kind: "afs", Network: true},
	unix.V9FS_MAGIC:            {Kind: "9p", Network: true},
	magicCIFS:                  {Kind: "cifs", Network: true},
	magicSMB2:                  {Kind: "smb2", Network: true},
	magicCeph:                  {Kind: "ceph", Network: true},
	magicGFS2:                  {Kind: "gfs2", Network: true},
	magicOCFS2:                 {Kind: "ocfs2", Network: true},
	magicFuse:                  {Kind: "fuse"},
}

// Volume implements FS, by statfs(2).
func (OS) Volume(dir string) (Volume, error) {
	var st unix.Statfs_t
	if err := retry(func() error { return unix.Statfs(dir, &st) }); err != nil {
		return Volume{}, opErr("statfs", dir, err)
	}
	magic := uint32(st.Type)
	if v, ok := volumes[magic]; ok {
		return v, nil
	}
	return Volume{Kind: "0x" + strconv.FormatUint(uint64(magic), 16)}, nil
}

// osFile is a descriptor and the name it was opened by.
type osFile struct {
	fd      int
	name    string
	flocked bool
}

// Pwrite implements File. os.File.WriteAt carries on silently after a short
// write, which is why this is the bare system call.
func (f *osFile) Pwrite(b []byte, off int64) (int, error) {
	for {
		n, err := unix.Pwrite(f.fd, b, off)
		switch {
		case err == unix.EINTR && n <= 0:
			continue
		case err != nil:
			return max(n, 0), opErr("pwrite", f.name, err)
		case n < len(b):
			return n, opErr("pwrite", f.name, io.ErrShortWrite)
		}
		return n, nil
	}
}

// Pread implements File.
func (f *osFile) Pread(b []byte, off int64) (int, error) {
	got := 0
	for got < len(b) {
		n, err := unix.Pread(f.fd, b[got:], off+int64(got))
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return got, opErr("pread", f.name, err)
		}
		if n == 0 {
			return got, io.EOF
		}
		got += n
	}
	return got, nil
}

// NextData implements File, by lseek(2). The position that it moves is used by nobody.
func (f *osFile) NextData(off int64) int64 {
	next, err := unix.Seek(f.fd, off, unix.SEEK_DATA)
	if err == unix.ENXIO {
		next, err = f.Size()
	}
	if err != nil {
		return off
	}
	return max(next, off)
}

// Datasync implements File. It is not repeated after an error, not even after
// an interruption: only the first answer of a sync means anything.
func (f *osFile) Datasync() error { return opErr("fdatasync", f.name, unix.Fdatasync(f.fd)) }

// Sync implements File and Dir.
func (f *osFile) Sync() error { return opErr("fsync", f.name, unix.Fsync(f.fd)) }

// Size implements File.
func (f *osFile) Size() (int64, error) {
	var st unix.Stat_t
	if err := unix.Fstat(f.fd, &st); err != nil {
		return 0, opErr("fstat", f.name, err)
	}
	return st.Size, nil
}

// Named implements File.
func (f *osFile) Named(name string) (bool, error) {
	var open, there unix.Stat_t
	if err := unix.Fstat(f.fd, &open); err != nil {
		return false, opErr("fstat", f.name, err)
	}
	err := retry(func() error { return unix.Stat(name, &there) })
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		return false, nil
	}
	return open.Dev == there.Dev && open.Ino == there.Ino, opErr("stat", name, err)
}

// Cut implements File.
func (f *osFile) Cut(size int64) error {
	return opErr("ftruncate", f.name, retry(func() error { return unix.Ftruncate(f.fd, size) }))
}

// DropCache implements File.
func (f *osFile) DropCache() error {
	return opErr("fadvise", f.name, unix.Fadvise(f.fd, 0, 0, unix.FADV_DONTNEED))
}

// Flock implements File.
func (f *osFile) Flock() error {
	err := retry(func() error { return unix.Flock(f.fd, unix.LOCK_EX|unix.LOCK_NB) })
	if err == unix.EWOULDBLOCK {
		err = ErrLocked
	}
	f.flocked = f.flocked || err == nil
	return opErr("flock", f.name, err)
}

// Close implements File and Dir. A lock is given up first: between fork and
// exec a child that is being started shares the file, and would keep it locked
// for that moment.
func (f *osFile) Close() error {
	var err error
	if f.flocked {
		err = opErr("unlock", f.name, retry(func() error { return unix.Flock(f.fd, unix.LOCK_UN) }))
	}
	return errors.Join(err, closeFD(f.fd, f.name))
}

// closeFD does not repeat after an interruption: on Linux the descriptor is
// gone by then, and its number may be somebody else's.
func closeFD(fd int, name string) error {
	if err := unix.Close(fd); err != nil && err != unix.EINTR {
		return opErr("close", name, err)
	}
	return nil
}

// OpenLock implements FS.
func (OS) OpenLock(name string, mode Mode) (LockFile, error) {
	flags := unix.O_RDONLY
	if mode == ReadWrite {
		flags = unix.O_RDWR | unix.O_CREAT
	}
	f, err := openFile(name, flags)
	if err != nil {
		return nil, err
	}
	return osLock{f.(*osFile)}, nil
}

type osLock struct{ *osFile }

// Lock implements LockFile. It polls, because F_OFD_SETLKW knows no deadline.
func (l osLock) Lock(ctx context.Context, off int64, kind LockKind) error {
	typ := int16(unix.F_RDLCK)
	if kind == Exclusive {
		typ = unix.F_WRLCK
	}
	for {
		err := l.fcntl(unix.F_OFD_SETLK, &unix.Flock_t{Type: typ, Start: off, Len: 1})
		if err == nil {
			return nil
		}
		if err != unix.EAGAIN && err != unix.EACCES {
			return opErr("lock", l.name, err)
		}
		select {
		case <-ctx.Done():
			return opErr("lock", l.name, ErrLocked)
		case <-time.After(lockPoll):
		}
	}
}

// Unlock implements LockFile.
func (l osLock) Unlock(off int64) error {
	return opErr("unlock", l.name, l.fcntl(unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_UNLCK, Start: off, Len: 1}))
}

// Close implements LockFile. It gives up every byte first, as osFile does.
func (l osLock) Close() error {
	err := opErr("unlock", l.name, l.fcntl(unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_UNLCK}))
	return errors.Join(err, l.osFile.Close())
}

// Held implements LockFile: a shared lock would be refused exactly while some
// other description holds an exclusive one.
func (l osLock) Held(off int64) (bool, error) {
	probe := unix.Flock_t{Type: unix.F_RDLCK, Start: off, Len: 1}
	if err := l.fcntl(unix.F_OFD_GETLK, &probe); err != nil {
		return false, opErr("getlk", l.name, err)
	}
	return probe.Type != unix.F_UNLCK, nil
}

func (l osLock) fcntl(cmd int, lk *unix.Flock_t) error {
	return retry(func() error { return unix.FcntlFlock(uintptr(l.fd), cmd, lk) })
}

// retry repeats a call that a signal interrupted before it did anything.
func retry(call func() error) error {
	for {
		if err := call(); err != unix.EINTR {
			return err
		}
	}
}

func opErr(op, name string, err error) error {
	if err == nil {
		return nil
	}
	return &OpError{Op: op, Name: name, Err: err}
}
