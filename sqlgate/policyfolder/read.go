package policyfolder

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"

	"writegate/sqlgate/policy"
)

// Findings of the folder, whose meaning the policy's catalogue holds.
const (
	integrityMismatch = "PV401"
	fileSetMismatch   = "PV402"
	corpusChanged     = "PV403"
)

var policyFileName = regexp.MustCompile(`^([a-z][a-z0-9-]{0,62}@(?:0|[1-9][0-9]{0,8})\.(?:0|[1-9][0-9]{0,8})\.(?:0|[1-9][0-9]{0,8}))\.yaml$`)

// Read reads the folder and judges it against its manifest. The findings say
// all that differs; with an error among them the folder must not be used. The
// error is ErrNoManifest where there is nothing to judge, and otherwise a
// failure to read at all.
func Read(dir, manifest string) (*Folder, []policy.Finding, error) {
	return read(dir, manifest, true)
}

// read is Read; with needActive a manifest without an active version is a
// finding.
func read(dir, manifest string, needActive bool) (*Folder, []policy.Finding, error) {
	if err := checkManifestName(manifest); err != nil {
		return nil, nil, err
	}
	root, err := openRoot(dir)
	if err != nil {
		return nil, nil, err
	}
	defer root.Close()
	r := &reading{root: root, manifestName: manifest, folder: &Folder{Documents: map[string][]byte{}}}
	data, err := readRegular(root, manifest, maxManifestBytes)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil, fmt.Errorf("%w (%s holds no %s)", ErrNoManifest, dir, manifest)
	case err != nil:
		r.find(fileSetMismatch, "the manifest cannot be used: %v; put a regular file in its place", err)
		return r.folder, r.findings, nil
	}
	if r.folder.Manifest, err = parseManifest(data); err != nil {
		r.find(integrityMismatch, "the manifest %s cannot be read: %v; `gate policy manifest` writes it anew from the files", manifest, err)
		return r.folder, r.findings, nil
	}
	names, err := namesIn(root, ".")
	if err != nil {
		return nil, nil, err
	}
	r.files(names)
	r.active(needActive)
	if err := r.corpora(); err != nil {
		return nil, nil, err
	}
	return r.folder, r.findings, nil
}

// A reading collects findings while the folder is read.
type reading struct {
	root         *os.Root
	manifestName string
	folder       *Folder
	findings     []policy.Finding
}

func (r *reading) find(code, format string, args ...any) {
	r.findings = append(r.findings, policy.NewFinding(code, format, args...))
}

// namesIn lists a folder without what begins with a dot.
func namesIn(root *os.Root, dir string) ([]string, error) {
	d, err := root.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("opening %s: %w", dir, err)
	}
	defer d.Close()
	all, err := d.Readdirnames(maxEntries + 1)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("listing %s: %w", dir, err)
	}
	if len(all) > maxEntries {
		return nil, fmt.Errorf("%s holds more than %d entries; is it the policy folder?", dir, maxEntries)
	}
	names := slices.DeleteFunc(all, func(name string) bool { return strings.HasPrefix(name, ".") })
	slices.Sort(names)
	return names, nil
}

// files compares the policy files with the manifest, both ways.
func (r *reading) files(names []string) {
	listed := map[string]bool{}
	for i, file := range r.folder.Manifest.Files {
		if listed[file.Path] {
			r.find(integrityMismatch, "the manifest lists %q twice; keep one entry", file.Path)
			continue
		}
		listed[file.Path] = true
		r.file(i, file)
	}
	for _, name := range names {
		if name != r.manifestName && name != CorpusDir && !listed[name] {
			r.find(fileSetMismatch, "%q is in the folder but not in the manifest; remove it, or list it with `gate policy manifest`", name)
		}
	}
}

// file reads one listed file, the i-th, and compares all that the manifest says of it.
func (r *reading) file(i int, file File) {
	name := policyFileName.FindStringSubmatch(file.Path)
	switch {
	case name == nil:
		r.find(fileSetMismatch, "the manifest lists %q, which is no name@major.minor.patch.yaml directly in the folder", file.Path)
		return
	case name[1] != file.PolicyVersion:
		r.find(integrityMismatch, "the manifest gives %s the version %q; a file and its version have one name", file.Path, file.PolicyVersion)
		return
	case !slices.Contains(statuses, file.Status):
		r.find(integrityMismatch, "the manifest gives %s the status %q; known are %s", file.Path, file.Status, strings.Join(statuses, ", "))
		return
	}
	data, err := readRegular(r.root, file.Path, maxPolicyBytes)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		r.find(fileSetMismatch, "%s is in the manifest but not in the folder; bring it back, or let `gate policy rebuild` write it from the log", file.Path)
	case err != nil:
		r.find(fileSetMismatch, "%s cannot be used: %v", file.Path, err)
	case policy.Digest(data) != policy.NormalHash(file.SHA256) || int64(len(data)) != file.Bytes:
		r.find(integrityMismatch, "%s has %d bytes with hash %s, but the manifest says %d bytes with hash %s; a version never changes: bring the bytes back, or save the change under a new version",
			file.Path, len(data), policy.Digest(data), file.Bytes, file.SHA256)
		r.findings[len(r.findings)-1].Pointer = hashPointer(i)
	default:
		r.folder.Documents[file.PolicyVersion] = data
	}
}

// active compares the active version with the statuses: it is exactly one.
func (r *reading) active(needed bool) {
	m := r.folder.Manifest
	var active []string
	for _, file := range m.Files {
		if file.Status == StatusActive {
			active = append(active, file.PolicyVersion)
		}
	}
	switch {
	case len(active) == 0 && m.Active == "" && !needed:
	case len(active) == 0 && m.Active == "":
		r.find(fileSetMismatch, "no version is active; give one file the status active and name it under active")
	case len(active) != 1 || active[0] != m.Active:
		r.find(integrityMismatch, "the manifest names %q as active, but the files with that status are [%s]; they must be one and the same", m.Active, strings.Join(active, ", "))
	}
}

// corpora reads corpus/*.yaml. A corpus grows between activations, so a
// difference from the manifest is a warning; one that cannot be read is not.
func (r *reading) corpora() error {
	names, err := r.corpusNames()
	if err != nil {
		return err
	}
	listed := map[string]CorpusFile{}
	for _, c := range r.folder.Manifest.Corpus {
		listed[c.Path] = c
	}
	for _, name := range names {
		if path.Ext(name) != ".yaml" {
			r.find(corpusChanged, "%s/%s is no .yaml file and is not run", CorpusDir, name)
			continue
		}
		r.corpus(path.Join(CorpusDir, name), listed)
	}
	for _, c := range r.folder.Manifest.Corpus {
		if _, left := listed[c.Path]; left {
			r.find(corpusChanged, "%s is in the manifest but not in the folder: its cases do not run", c.Path)
		}
	}
	return nil
}

func (r *reading) corpusNames() ([]string, error) {
	err := checkCorpusDir(r.root)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		r.find(fileSetMismatch, "%v; put a real folder in its place", err)
		return nil, nil
	}
	return namesIn(r.root, CorpusDir)
}

// checkCorpusDir refuses a corpus that is no real folder.
func checkCorpusDir(root *os.Root) error {
	info, err := root.Lstat(CorpusDir)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return fmt.Errorf("%s is %s, not a folder", CorpusDir, kindOf(info.Mode()))
	}
	return nil
}

func (r *reading) corpus(name string, listed map[string]CorpusFile) {
	entry, known := listed[name]
	delete(listed, name)
	data, err := readRegular(r.root, name, maxCorpusBytes)
	if err != nil {
		r.find(fileSetMismatch, "the corpus %s cannot be used: %v", name, err)
		return
	}
	hash := policy.Digest(data)
	switch {
	case !known:
		r.find(corpusChanged, "the corpus %s is not in the manifest; it runs all the same", name)
	case policy.NormalHash(entry.SHA256) != hash:
		r.find(corpusChanged, "the corpus %s has changed since the manifest was written; it runs as it is", name)
	}
	cases, findings := policy.ParseCorpus(data)
	for _, f := range findings {
		f.Message = name + ": " + f.Message
		r.findings = append(r.findings, f)
	}
	r.folder.Corpora = append(r.folder.Corpora, policy.Corpus{Name: name, SHA256: hash, Cases: cases})
}

// Corpora reads the corpus files of a folder, whatever state the rest of it is
// in. The findings are about the corpora alone: those that changed since the
// manifest was written, and as errors those that cannot be used.
func Corpora(dir, manifest string) ([]policy.Corpus, []policy.Finding, error) {
	root, err := openRoot(dir)
	if errors.Is(err, ErrNoManifest) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	defer root.Close()
	r := &reading{root: root, manifestName: manifest, folder: &Folder{}}
	if data, err := readRegular(root, manifest, maxManifestBytes); err == nil {
		if m, err := parseManifest(data); err == nil {
			r.folder.Manifest = m
		}
	}
	err = r.corpora()
	return r.folder.Corpora, r.findings, err
}

// Document reads the file of one version as it is on disk, whatever the
// manifest says of it.
func Document(dir, policyVersion string) ([]byte, error) {
	root, err := openRoot(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	return readRegular(root, Path(policyVersion), maxPolicyBytes)
}
