package policyfolder

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"writegate/sqlgate/policy"
)

// A State is what the log holds: every version with its bytes and status, and
// the sequence number of the last policy event.
type State struct {
	Seq      uint64
	Active   string
	Versions []Version
}

// A Version is one policy version of a state.
type Version struct {
	PolicyVersion string
	Status        string
	Document      []byte
}

// temporary is the beginning of the names of unfinished files.
const temporary = ".tmp-"

// Write makes the folder hold the state: files that are missing, then the
// manifest. Files with the right bytes stay untouched, and one with other
// bytes is an error: what somebody changed is never overwritten. Corpus files
// belong to people; Write lists them as they are.
//
// It creates the folder where there is none. Files of the folder that the
// state does not know are an error too, before anything is written.
func Write(dir, manifest string, state State) error {
	if err := checkManifestName(manifest); err != nil {
		return err
	}
	m, err := state.manifest()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("creating the policy folder: %w", err)
	}
	root, err := os.OpenRoot(dir + "/") // a pipe in its place is no folder, and is not waited for
	if err != nil {
		return fmt.Errorf("opening the policy folder: %w", err)
	}
	defer root.Close()
	missing, err := state.missing(root, manifest)
	if err != nil {
		return err
	}
	if err := sweep(root); err != nil {
		return err
	}
	for _, v := range missing {
		if err := place(root, Path(v.PolicyVersion), v.Document); err != nil {
			return err
		}
	}
	if m.Corpus, err = corpusFiles(root); err != nil {
		return err
	}
	data, err := m.encode()
	if err != nil {
		return err
	}
	return place(root, manifest, data)
}

// manifest lists the state and refuses one that does not hold together.
func (s State) manifest() (Manifest, error) {
	m := Manifest{Schema: SchemaVersion, Seq: s.Seq, Active: s.Active}
	active := ""
	for _, v := range s.Versions {
		switch {
		case policyFileName.FindString(Path(v.PolicyVersion)) == "":
			return m, fmt.Errorf("%q is no policy version", v.PolicyVersion)
		case !slices.Contains(statuses, v.Status):
			return m, fmt.Errorf("%s has the status %q; known are %s", v.PolicyVersion, v.Status, strings.Join(statuses, ", "))
		case v.Status == StatusActive && active != "":
			return m, fmt.Errorf("both %s and %s are active", active, v.PolicyVersion)
		case v.Status == StatusActive:
			active = v.PolicyVersion
		}
		m.Files = append(m.Files, File{
			Path: Path(v.PolicyVersion), PolicyVersion: v.PolicyVersion, Status: v.Status,
			SHA256: policy.Digest(v.Document), Bytes: int64(len(v.Document)),
		})
	}
	if active != s.Active {
		return m, fmt.Errorf("the active version is %q, but the one with that status is %q", s.Active, active)
	}
	return m, nil
}

// missing compares the folder with the state and returns what has to be
// written; other bytes and strange files end it.
func (s State) missing(root *os.Root, manifest string) ([]Version, error) {
	known := map[string]bool{manifest: true, CorpusDir: true}
	var missing []Version
	for _, v := range s.Versions {
		name := Path(v.PolicyVersion)
		known[name] = true
		data, err := readRegular(root, name, maxPolicyBytes)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			missing = append(missing, v)
		case err != nil:
			return nil, fmt.Errorf("the policy folder is not as the log has it: %w; move it away and try again", err)
		case !bytes.Equal(data, v.Document):
			return nil, fmt.Errorf("the policy folder is not as the log has it: %s has other bytes (hash %s, in the log %s); move it away and try again",
				name, policy.Digest(data), policy.Digest(v.Document))
		}
	}
	names, err := namesIn(root, ".")
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		if !known[name] {
			return nil, fmt.Errorf("the policy folder holds %q, which the log does not know; move it away and try again", name)
		}
	}
	return missing, nil
}

// place writes a file so that after a crash it is there whole or not at all.
func place(root *os.Root, name string, data []byte) error {
	temp := temporary + strings.ReplaceAll(name, "/", "-")
	file, err := root.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("creating a temporary file for %s: %w", name, err)
	}
	_, err = file.Write(data)
	if err == nil {
		err = file.Sync()
	}
	if closing := file.Close(); err == nil {
		err = closing
	}
	if named := (*fs.PathError)(nil); errors.As(err, &named) {
		err = named.Err // where the folder lies on the host is not for who reads this in an answer
	}
	if err == nil {
		err = root.Rename(temp, name)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("writing %s: %w", name, err), ignoreAbsent(root.Remove(temp)))
	}
	return syncDir(root)
}

func ignoreAbsent(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// syncDir makes renames in the folder durable.
func syncDir(root *os.Root) error {
	dir, err := root.Open(".")
	if err != nil {
		return fmt.Errorf("opening the policy folder to sync it: %w", err)
	}
	defer dir.Close()
	if err := dir.Sync(); err != nil {
		return fmt.Errorf("syncing the policy folder: %w", err)
	}
	return nil
}

// sweep removes the unfinished files that a crash left.
func sweep(root *os.Root) error {
	dir, err := root.Open(".")
	if err != nil {
		return fmt.Errorf("opening the policy folder: %w", err)
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return fmt.Errorf("listing the policy folder: %w", err)
	}
	for _, name := range names {
		if !strings.HasPrefix(name, temporary) {
			continue
		}
		if err := ignoreAbsent(root.Remove(name)); err != nil {
			return fmt.Errorf("removing the unfinished %s: %w", name, err)
		}
	}
	return nil
}

// corpusFiles lists corpus/*.yaml with hashes.
func corpusFiles(root *os.Root) ([]CorpusFile, error) {
	if err := checkCorpusDir(root); err != nil {
		return nil, ignoreAbsent(err)
	}
	names, err := namesIn(root, CorpusDir)
	if err != nil {
		return nil, err
	}
	var files []CorpusFile
	for _, name := range names {
		if path.Ext(name) != ".yaml" {
			continue
		}
		name = path.Join(CorpusDir, name)
		data, err := readRegular(root, name, maxCorpusBytes)
		if err != nil {
			return nil, fmt.Errorf("the corpus %s cannot be used: %w", name, err)
		}
		files = append(files, CorpusFile{Path: name, SHA256: policy.Digest(data), Bytes: int64(len(data))})
	}
	return files, nil
}

// BuildManifest makes a manifest from the files of a folder, for a person who
// put them there: each policy file is listed with its hash. Statuses and the
// active version are kept from the manifest that stands there, a new file is a
// candidate; where no version is active and there is exactly one file, that
// one is. Seq is kept as well, 0 where there is no manifest. Nothing is written.
func BuildManifest(dir, manifest string) (Manifest, error) {
	m := Manifest{Schema: SchemaVersion}
	if err := checkManifestName(manifest); err != nil {
		return m, err
	}
	root, err := os.OpenRoot(dir + "/") // a pipe in its place is no folder, and is not waited for
	if err != nil {
		return m, fmt.Errorf("opening the policy folder: %w", err)
	}
	defer root.Close()
	before, err := standing(root, manifest)
	if err != nil {
		return m, err
	}
	m.Seq, m.Active = before.Seq, ""
	status := map[string]string{}
	for _, file := range before.Files {
		status[file.PolicyVersion] = file.Status
	}
	names, err := namesIn(root, ".")
	if err != nil {
		return m, err
	}
	for _, name := range names {
		if name == manifest || name == CorpusDir {
			continue
		}
		file, err := listedFile(root, name, status)
		if err != nil {
			return m, err
		}
		if file.Status == StatusActive {
			m.Active = file.PolicyVersion
		}
		m.Files = append(m.Files, file)
	}
	if m.Active == "" && len(m.Files) == 1 {
		m.Files[0].Status, m.Active = StatusActive, m.Files[0].PolicyVersion
	}
	m.Corpus, err = corpusFiles(root)
	return m, err
}

// standing is the manifest that is there; none is an empty one, and one that
// cannot be read tells nothing either.
func standing(root *os.Root, manifest string) (Manifest, error) {
	data, err := readRegular(root, manifest, maxManifestBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return Manifest{}, nil
	}
	if err != nil {
		return Manifest{}, err
	}
	m, err := parseManifest(data)
	if err != nil {
		return Manifest{}, fmt.Errorf("the manifest %s cannot be read: %w; move it away to begin anew", manifest, err)
	}
	return m, nil
}

func listedFile(root *os.Root, name string, status map[string]string) (File, error) {
	version := policyFileName.FindStringSubmatch(name)
	if version == nil {
		return File{}, fmt.Errorf("%q is no policy file: the name must be name@major.minor.patch.yaml; rename it or move it away", name)
	}
	data, err := readRegular(root, name, maxPolicyBytes)
	if err != nil {
		return File{}, err
	}
	file := File{Path: name, PolicyVersion: version[1], Status: status[version[1]], SHA256: policy.Digest(data), Bytes: int64(len(data))}
	if file.Status == "" {
		file.Status = StatusCandidate
	}
	return file, nil
}

// WriteManifest puts a manifest in place.
func WriteManifest(dir, manifest string, m Manifest) error {
	if err := checkManifestName(manifest); err != nil {
		return err
	}
	root, err := os.OpenRoot(dir + "/") // a pipe in its place is no folder, and is not waited for
	if err != nil {
		return fmt.Errorf("opening the policy folder: %w", err)
	}
	defer root.Close()
	if err := sweep(root); err != nil {
		return err
	}
	data, err := m.encode()
	if err != nil {
		return err
	}
	return place(root, manifest, data)
}

// Init writes the starting policy under a name ("" is policy.StartingName) and
// a manifest that makes it active. It refuses a folder that holds anything
// already.
func Init(dir, manifest, name string) error {
	return Create(dir, manifest, policy.Starting(name))
}

// Create is Init with a document of the caller's: the demonstration starts
// with its own.
func Create(dir, manifest string, document []byte) error {
	p, report := policy.Load(document, policy.Options{})
	if p == nil {
		return report.Err()
	}
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("looking into the policy folder: %w", err)
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), ".") && e.Name() != CorpusDir {
			return fmt.Errorf("the policy folder %s holds %s already; a starting policy is written into an empty folder", dir, e.Name())
		}
	}
	return Write(dir, manifest, State{Active: p.Version(), Versions: []Version{{PolicyVersion: p.Version(), Status: StatusActive, Document: document}}})
}
