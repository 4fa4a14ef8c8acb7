package policyfolder

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"writegate/sqlgate/policy"
)

// Actions of a Change.
const (
	ActionMove  = "move"  // out of the folder, into one beside it
	ActionWrite = "write" // from the log
)

// A Change is one thing that Rebuild does to a folder, and why.
type Change struct {
	Action string `json:"action"`
	Path   string `json:"path"` // below the folder
	Why    string `json:"why"`
}

// Plan says what makes the folder hold the state, whoever changed what in it;
// nothing where it does already. Nothing is written. Corpus files belong to
// people and stay, all but those that are no regular files.
func Plan(dir, manifest string, state State) ([]Change, error) {
	if err := checkManifestName(manifest); err != nil {
		return nil, err
	}
	if _, err := state.manifest(); err != nil {
		return nil, err
	}
	p := planning{state: state, manifest: manifest}
	root, err := openRoot(dir)
	if errors.Is(err, ErrNoManifest) {
		p.writeMissing(nil)
		p.write(manifest, "there is none")
		return p.changes, nil
	}
	if err != nil {
		return nil, err
	}
	defer root.Close()
	p.root = root
	names, err := namesIn(root, ".")
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		p.look(name)
	}
	p.writeMissing(names)
	return p.changes, errors.Join(p.lookAtCorpora(names), p.lookAtManifest(names))
}

type planning struct {
	root     *os.Root
	state    State
	manifest string
	changes  []Change
}

func (p *planning) move(name, format string, args ...any) {
	p.changes = append(p.changes, Change{ActionMove, name, fmt.Sprintf(format, args...)})
}

func (p *planning) write(name, why string) {
	p.changes = append(p.changes, Change{ActionWrite, name, why})
}

// look judges one name that is no manifest and no corpus.
func (p *planning) look(name string) {
	if name == p.manifest || name == CorpusDir {
		return
	}
	v, known := p.state.version(strings.TrimSuffix(name, ".yaml"))
	if !known || name != Path(v.PolicyVersion) {
		p.move(name, "the log does not know it")
		return
	}
	data, err := readRegular(p.root, name, maxPolicyBytes)
	switch {
	case err != nil:
		p.move(name, "it cannot be used: %v", err)
	case !bytes.Equal(data, v.Document):
		p.move(name, "its bytes have the hash %s, those of the log %s", policy.Digest(data), policy.Digest(v.Document))
	default:
		return
	}
	p.write(name, "the bytes of the log")
}

// writeMissing adds the versions of the log that the folder has not.
func (p *planning) writeMissing(names []string) {
	for _, v := range p.state.Versions {
		if name := Path(v.PolicyVersion); !slices.Contains(names, name) {
			p.write(name, "the log has it, the folder not")
		}
	}
}

func (p *planning) lookAtCorpora(names []string) error {
	if !slices.Contains(names, CorpusDir) {
		return nil
	}
	if err := checkCorpusDir(p.root); err != nil {
		p.move(CorpusDir, "%v", err)
		return nil
	}
	inside, err := namesIn(p.root, CorpusDir)
	for _, name := range inside {
		name = path.Join(CorpusDir, name)
		if info, err := p.root.Lstat(name); err == nil && path.Ext(name) == ".yaml" && !info.Mode().IsRegular() {
			p.move(name, "it is %s, not a regular file", kindOf(info.Mode()))
		}
	}
	return err
}

// lookAtManifest compares all of the manifest but its corpora, which may change.
func (p *planning) lookAtManifest(names []string) error {
	if !slices.Contains(names, p.manifest) {
		p.write(p.manifest, "there is none")
		return nil
	}
	want, err := p.state.manifest()
	if err != nil {
		return err
	}
	data, err := readRegular(p.root, p.manifest, maxManifestBytes)
	if err != nil {
		p.move(p.manifest, "it cannot be used: %v", err)
		p.write(p.manifest, "what the log says")
		return nil
	}
	m, err := parseManifest(data)
	if err == nil && m.Seq == want.Seq && m.Active == want.Active && sameFiles(m.Files, want.Files) {
		return nil
	}
	why := fmt.Sprintf("it reflects event %d with %q active", m.Seq, m.Active)
	if err != nil {
		why = fmt.Sprintf("it cannot be read: %v", err)
	}
	p.move(p.manifest, "%s", why)
	p.write(p.manifest, fmt.Sprintf("the log: event %d with %q active", want.Seq, want.Active))
	return nil
}

func sameFiles(a, b []File) bool {
	byPath := func(a, b File) int { return strings.Compare(a.Path, b.Path) }
	a, b = slices.Clone(a), slices.Clone(b)
	slices.SortFunc(a, byPath)
	slices.SortFunc(b, byPath)
	return slices.Equal(a, b)
}

// Aside is the folder into which Rebuild moves what it replaces: beside the
// policy folder, named after the moment.
func Aside(dir string, now time.Time) (string, error) {
	whole, err := filepath.Abs(dir)
	return whole + ".replaced-" + now.UTC().Format("20060102T150405Z"), err
}

// Rebuild makes the folder hold the state: what Plan moves goes into aside,
// which must not be there yet, the rest is Write. Nothing is lost: a crash in
// between leaves a folder that is only behind the log, and the next Write
// completes it.
func Rebuild(dir, manifest string, state State, aside string) error {
	changes, err := Plan(dir, manifest, state)
	if err != nil || len(changes) == 0 {
		return err
	}
	changes = slices.DeleteFunc(changes, func(c Change) bool { return c.Action != ActionMove })
	if len(changes) > 0 {
		if err := moveAside(dir, aside, changes); err != nil {
			return err
		}
	}
	return Write(dir, manifest, state)
}

func moveAside(dir, aside string, changes []Change) error {
	if err := os.Mkdir(aside, 0o700); err != nil {
		return fmt.Errorf("making a folder for what is replaced: %w", err)
	}
	for _, c := range changes {
		to := filepath.Join(aside, filepath.FromSlash(c.Path))
		if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
			return fmt.Errorf("making a folder for what is replaced: %w", err)
		}
		if err := os.Rename(filepath.Join(dir, filepath.FromSlash(c.Path)), to); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("moving %s aside: %w; move it yourself and try again", c.Path, err)
		}
	}
	for _, name := range []string{aside, filepath.Dir(aside), dir} {
		root, err := os.OpenRoot(name + "/") // a pipe in its place is no folder, and is not waited for
		if err != nil {
			return fmt.Errorf("opening %s: %w", name, err)
		}
		if err := errors.Join(syncDir(root), root.Close()); err != nil {
			return err
		}
	}
	return nil
}
