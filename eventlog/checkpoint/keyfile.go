package checkpoint

import (
	"bytes"
	"crypto/ed25519"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// maxKeyFile bounds what is read as a key; a PEM key has about 120 bytes.
const maxKeyFile = 16 << 10

// LoadPrivateKey reads the PEM file of a private key. A file that other users
// may read or write is refused, with the command that mends it: whoever read
// the key can sign another history. Errors wrap ErrKey or that of the file.
func LoadPrivateKey(path string) (*PrivateKey, error) {
	text, info, err := readKeyFile(path)
	if err != nil {
		return nil, err
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 {
		return nil, fmt.Errorf("%w: %s may be used by others (mode %04o); chmod 600 it, and make a new key if others may have read it", ErrKey, path, mode)
	}
	key, err := ParsePrivateKey(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return key, nil
}

// LoadPublicKey reads a public key from a file, in any form of ParsePublicKey, or as
// its 32 bytes. Those are for a file alone: a path may be as long.
func LoadPublicKey(path string) (PublicKey, error) {
	text, _, err := readKeyFile(path)
	if err != nil {
		return PublicKey{}, err
	}
	parse := ParsePublicKey
	if len(text) == ed25519.PublicKeySize {
		parse = func(raw []byte) (PublicKey, error) { return usable(PublicKey(raw)) }
	}
	key, err := parse(text)
	if err != nil {
		return PublicKey{}, fmt.Errorf("%s: %w", path, err)
	}
	return key, nil
}

// LoadKeyPair reads both halves and refuses two that do not belong together:
// every signature would be refused by those who were given the other one.
func LoadKeyPair(privatePath, publicPath string) (*PrivateKey, error) {
	private, err := LoadPrivateKey(privatePath)
	if err != nil {
		return nil, err
	}
	public, err := LoadPublicKey(publicPath)
	if err != nil {
		return nil, err
	}
	if public != private.Public() {
		return nil, fmt.Errorf("%w: %s is %s, but %s belongs to %s", ErrKey, publicPath, public.ID(), privatePath, private.Public().ID())
	}
	return private, nil
}

func readKeyFile(path string) ([]byte, fs.FileInfo, error) {
	return readRegular(path, maxKeyFile, ErrKey)
}

// readRegular reads a regular file of at most most bytes; what is no such file
// is the error no. The info is that of the open descriptor, so what was judged
// is what was read, and a pipe is not waited for.
func readRegular(path string, most int64, no error) (content []byte, info fs.FileInfo, err error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if info, err = f.Stat(); err != nil {
		return nil, nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, nil, fmt.Errorf("%w: %s is not a regular file", no, path)
	}
	content, err = io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && int64(len(content)) > most {
		err = fmt.Errorf("%w: %s has more than %d bytes", no, path, most)
	}
	return content, info, err
}

// WriteKeyPair makes the two files of a new key, readable by their owner alone:
// the public half is for others, but who gets it is decided by whoever copies it.
// A file that exists is never written over, because a lost
// key can't be had again; then nothing is changed.
func WriteKeyPair(privatePath, publicPath string, k *PrivateKey) error {
	private, err := k.PEM()
	if err != nil {
		return err
	}
	public, err := k.Public().PEM()
	if err != nil {
		return err
	}
	if err := writeNew(privatePath, private); err != nil {
		return err
	}
	if err := writeNew(publicPath, public); err != nil {
		return errors.Join(err, os.Remove(privatePath))
	}
	return nil
}

// writeNew creates a file that is whole and synced, or is not there.
func writeNew(path string, content []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, bytes.NewReader(content))
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = syncFolder(filepath.Dir(path))
	}
	if err != nil {
		return errors.Join(err, os.Remove(path))
	}
	return nil
}

func syncFolder(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
