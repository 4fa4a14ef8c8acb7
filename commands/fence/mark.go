package fence

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"writegate/eventlog/frame"
	"writegate/sqlgate/pgexec"
)

// Suffix and W is the name of the file that says which mark is being taken.
const Suffix = ".fence"

const fileFormat = "gate.log_fence.v1"

// A taking is a change of the row that was begun.
type taking struct {
	logID    [16]byte
	from, to pgexec.FenceMark
	reason   string // an operator's; "" = nobody had to decide
}

// takingFile is a taking as it stands in the file.
type takingFile struct {
	Format string   `json:"format"`
	LogID  string   `json:"log_id"`
	From   fileMark `json:"from"` // epoch 0: the table had nothing
	To     fileMark `json:"to"`
	Reason string   `json:"reason,omitempty"`
}

type fileMark struct {
	Epoch uint64 `json:"epoch"`
	Nonce string `json:"nonce"`
}

func newNonce() (nonce [16]byte) {
	_, _ = rand.Read(nonce[:]) // never fails (crypto/rand)
	return nonce
}

// readTaking gives the zero taking where there is no file, or one of another log: a log that
// follows another one finds that one's file in its place.
func readTaking(path string, logID [16]byte) (t taking, err error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return t, nil
	}
	var f takingFile
	if err == nil {
		err = json.Unmarshal(b, &f)
	}
	if err == nil && f.Format != fileFormat {
		err = fmt.Errorf("its format is %.40q, not %q", f.Format, fileFormat)
	}
	for _, field := range []struct {
		into []byte
		text string
	}{{t.logID[:], f.LogID}, {t.from.Nonce[:], f.From.Nonce}, {t.to.Nonce[:], f.To.Nonce}} {
		if err == nil && len(field.text) != hex.EncodedLen(len(field.into)) {
			err = fmt.Errorf("%.40q is not a number of %d bytes", field.text, len(field.into))
		}
		if err == nil {
			_, err = hex.Decode(field.into, []byte(field.text))
		}
	}
	if err != nil {
		return taking{}, fmt.Errorf("%s, which says how far an earlier start came with the fence, can't be read: %w. Where it is damaged, remove it: if the table is ahead of the log then, `gate log fence take` has this copy go on", path, err)
	}
	if t.logID != logID {
		return taking{}, nil
	}
	t.from.Epoch, t.to.Epoch, t.reason = f.From.Epoch, f.To.Epoch, f.Reason
	return t, nil
}

// write makes the file, durably: what the table has must never be ahead of it.
func (t *taking) write(path string) (err error) {
	mark := func(m pgexec.FenceMark) fileMark { return fileMark{m.Epoch, hex.EncodeToString(m.Nonce[:])} }
	b, err := json.MarshalIndent(takingFile{fileFormat, hex.EncodeToString(t.logID[:]), mark(t.from), mark(t.to), t.reason}, "", "  ")
	if err != nil {
		return err
	}
	temp := path + ".tmp"
	f, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(append(b, '\n'))
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Rename(temp, path)
	}
	if err == nil {
		err = frame.OS{}.SyncDir(filepath.Dir(path))
	}
	return err
}
