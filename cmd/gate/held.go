package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"writegate/eventlog/frame"
)

// errHeld says that another process has what two must not share.
var errHeld = errors.New("another process holds it")

// holdFolder locks a folder until it is closed, without a file in it. Errors:
// errHeld, or those of the file system.
func holdFolder(dir string) (*os.File, error) {
	f, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	if err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err == nil {
		return f, nil
	}
	if err == unix.EWOULDBLOCK {
		err = errHeld
	}
	return nil, errors.Join(fmt.Errorf("%s: %w", dir, err), f.Close())
}

// holdFile locks what stands for a file that may be moved and made anew while it
// is held: a file beside it. Errors are those of holdFolder.
func holdFile(path string) (frame.LockFile, error) {
	if st, err := os.Stat(path); err == nil && !st.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: %w", path, frame.ErrNotRegular)
	}
	lock, err := frame.OS{}.OpenLock(path+frame.LockSuffix, frame.ReadWrite)
	if err != nil {
		return nil, err
	}
	once, cancel := context.WithCancel(context.Background())
	cancel()
	if err = lock.Lock(once, frame.WriterByte, frame.Exclusive); err == nil {
		return lock, nil
	}
	if errors.Is(err, frame.ErrLocked) {
		err = fmt.Errorf("%s: %w", path, errHeld)
	}
	return nil, errors.Join(err, lock.Close())
}

// hold keeps other gates away from the places that have no lock of their own: the
// readable copy, which each would move aside, and the policy folder, whose
// manifest each would write. What can't be locked for another reason is no
// obstacle: its own use says what is wrong with it.
func (g *service) hold() error {
	folder, err := holdFolder(g.settings.PolicyDir)
	if err == nil {
		g.held = append(g.held, folder)
	} else if errors.Is(err, errHeld) {
		return exitWith(exitLocked, fmt.Errorf("the policy folder (GATE_POLICY_DIR) is another gate's: give each gate its own: %w", err))
	}
	file, err := holdFile(g.settings.AuditLogPath)
	if err == nil {
		g.held = append(g.held, file)
	} else if errors.Is(err, errHeld) {
		return exitWith(exitLocked, fmt.Errorf("the readable copy of the log (GATE_AUDIT_LOG_PATH) is another gate's: give each gate its own: %w", err))
	}
	return nil
}
