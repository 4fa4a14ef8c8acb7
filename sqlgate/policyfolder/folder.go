// Package policyfolder reads and writes GATE_POLICY_DIR, the folder of policy
// files.
//
// The log is the truth of policy bytes and statuses; the folder is a
// projection of it that people can read, review and keep under version
// control:
//
//	manifest.json                  what belongs here, with hashes and statuses
//	core-write-gate@1.4.0.yaml     one file a version, its bytes never change
//	corpus/*.yaml                  cases that run before every activation
//
// Read judges the folder against its manifest, which is an exact set: a policy
// file that is not listed, a listed one that is missing or has other bytes, a
// symbolic link and a name that is no name@version.yaml are all findings, and
// each says what differs and what to do. Only names that begin with a dot are
// passed over, because the unfinished files of a crashed Write are called so.
//
// Write makes the folder equal to a state of the log. Every file is written as
// a temporary file, synced, renamed, and the folder synced; the manifest comes
// last. So whenever the process ends, the folder holds the old manifest with
// all its files, or the new one with all of its.
//
// Everything goes through os.Root: no name and no link leads out of the folder.
package policyfolder

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"

	"writegate/sqlgate/policy"
)

// SchemaVersion is the schema of a manifest.
const SchemaVersion = "gate.manifest/v1"

// DefaultManifest is the manifest's name where GATE_POLICY_MANIFEST is not set.
const DefaultManifest = "manifest.json"

// CorpusDir is the folder of corpus files inside the policy folder.
const CorpusDir = "corpus"

// Statuses of a policy version.
const (
	StatusActive    = "active"
	StatusCandidate = "candidate"
	StatusArchived  = "archived"
	StatusRejected  = "rejected"
)

var statuses = []string{StatusActive, StatusCandidate, StatusArchived, StatusRejected}

// Bounds of what is read, so that a wrong folder cannot fill the memory.
const (
	maxManifestBytes = 4 << 20
	maxPolicyBytes   = 256 << 10
	maxCorpusBytes   = 2 << 20
	maxEntries       = 10_000
)

// A Manifest says what belongs to the folder.
type Manifest struct {
	Schema string `json:"schema"`
	// Seq is that of the last policy event that the folder reflects, 0 in a
	// manifest that was not written from a log.
	Seq uint64 `json:"seq"`
	// Active is the policy version in force, "" where there is none.
	Active string       `json:"active"`
	Files  []File       `json:"files"`
	Corpus []CorpusFile `json:"corpus"`
}

// A File is one policy version of a manifest. SHA256 is 64 lower-case hex digits.
type File struct {
	Path          string `json:"path"`
	PolicyVersion string `json:"policy_version"`
	Status        string `json:"status"`
	SHA256        string `json:"sha256"`
	Bytes         int64  `json:"bytes"`
}

// A CorpusFile is one corpus of a manifest.
type CorpusFile struct {
	Path   string `json:"path"`
	SHA256 string `json:"sha256"`
	Bytes  int64  `json:"bytes"`
}

// A Folder is what was read: the manifest and the bytes of what it lists.
type Folder struct {
	Manifest Manifest
	// Documents are the bytes of the policy files by policy version.
	Documents map[string][]byte
	// Corpora are the corpus files found, in the order of their paths,
	// whether the manifest knows them or not.
	Corpora []policy.Corpus
}

// ErrNoManifest: the folder is absent, or holds no manifest. There is nothing
// to judge then; `gate policy init` writes a beginning.
var ErrNoManifest = errors.New("there is no policy manifest; `gate policy init` writes a starting policy")

// Active gives the bytes of the active version.
func (f *Folder) Active() (version string, document []byte, ok bool) {
	document, ok = f.Documents[f.Manifest.Active]
	return f.Manifest.Active, document, ok && f.Manifest.Active != ""
}

// Path is the place of a version's file below the folder.
func Path(policyVersion string) string { return policyVersion + ".yaml" }

// openRoot opens the folder; an absent one is ErrNoManifest.
func openRoot(dir string) (*os.Root, error) {
	root, err := os.OpenRoot(dir + "/") // a pipe in its place is no folder, and is not waited for
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w (the folder %s does not exist)", ErrNoManifest, dir)
	}
	if err != nil {
		return nil, fmt.Errorf("opening the policy folder: %w", err)
	}
	return root, nil
}

// checkManifestName refuses a manifest anywhere but directly in the folder.
func checkManifestName(manifest string) error {
	if manifest == "" || manifest != path.Base(manifest) || strings.HasPrefix(manifest, ".") || strings.HasSuffix(manifest, ".yaml") || manifest == CorpusDir {
		return fmt.Errorf("the manifest name %q must be a plain file name in the policy folder, such as %s", manifest, DefaultManifest)
	}
	return nil
}

// readRegular reads a regular file whole, at most limit bytes. A symbolic link
// is refused even where it points inside the folder: whoever can turn it would
// change a policy without touching its file.
func readRegular(root *os.Root, name string, limit int64) ([]byte, error) {
	info, err := root.Lstat(name)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is %s, not a regular file", name, kindOf(info.Mode()))
	}
	file, err := root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a pipe that came into its place is not waited for
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if opened, err := file.Stat(); err != nil || !os.SameFile(info, opened) {
		return nil, fmt.Errorf("%s changed while it was opened", name)
	}
	data, err := io.ReadAll(io.LimitReader(file, limit+1))
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", name, err)
	}
	if int64(len(data)) > limit {
		return nil, fmt.Errorf("%s has more than %d bytes", name, limit)
	}
	return data, nil
}

func kindOf(mode fs.FileMode) string {
	switch {
	case mode&fs.ModeSymlink != 0:
		return "a symbolic link"
	case mode.IsDir():
		return "a folder"
	case mode.IsRegular():
		return "a regular file"
	default:
		return "a special file"
	}
}

// parseManifest is strict: an unknown key, a doubled one or more after the end
// is an error, since a manifest that is read two ways vouches for nothing.
func parseManifest(data []byte) (Manifest, error) {
	var m Manifest
	if err := noDoubledKeys(data); err != nil {
		return m, err
	}
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&m); err != nil {
		return m, err
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return m, errors.New("there is more after the JSON object")
	}
	if m.Schema != SchemaVersion {
		return m, fmt.Errorf("its schema is %q, not %s", m.Schema, SchemaVersion)
	}
	return m, nil
}

// noDoubledKeys walks the tokens and refuses an object with a key twice.
func noDoubledKeys(data []byte) error {
	decoder := json.NewDecoder(bytes.NewReader(data))
	var open []map[string]bool // nil for a list
	wantKey := false
	for {
		token, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		switch token {
		case json.Delim('{'):
			open, wantKey = append(open, map[string]bool{}), true
			continue
		case json.Delim('['):
			open, wantKey = append(open, nil), false
			continue
		case json.Delim('}'), json.Delim(']'):
			open = open[:len(open)-1]
		default:
			if key, ok := token.(string); ok && wantKey {
				keys := open[len(open)-1]
				if keys[key] {
					return fmt.Errorf("the key %q stands twice in one object", key)
				}
				keys[key], wantKey = true, false
				continue
			}
		}
		wantKey = len(open) > 0 && open[len(open)-1] != nil
	}
}

// encode is the one form in which a manifest is written.
func (m Manifest) encode() ([]byte, error) {
	slices.SortFunc(m.Files, func(a, b File) int { return strings.Compare(a.Path, b.Path) })
	slices.SortFunc(m.Corpus, func(a, b CorpusFile) int { return strings.Compare(a.Path, b.Path) })
	if m.Files == nil {
		m.Files = []File{}
	}
	if m.Corpus == nil {
		m.Corpus = []CorpusFile{}
	}
	data, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encoding the manifest: %w", err)
	}
	return append(data, '\n'), nil
}
