package policyfolder

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"writegate/sqlgate/policy"
)

// A Standing is how the folder stands to the log at a start.
type Standing string

const (
	// Agrees: the same sequence number, versions, statuses and bytes.
	Agrees Standing = "agrees"
	// Absent: there is no folder, or nothing in it. Write makes it.
	Absent Standing = "absent"
	// Behind: an earlier sequence number, and every byte in the folder is one
	// that the log knows: a crash came between the log and the folder. Write
	// brings it up.
	Behind Standing = "behind"
	// Differs: anything else. A person has to look, and nothing is written.
	Differs Standing = "differs"
)

// Compare judges the folder against a state of the log. The findings say what
// differs; those of a folder that is only behind are left out, since Write
// removes their cause.
func Compare(dir, manifest string, state State) (Standing, []policy.Finding, error) {
	if empty, err := isEmpty(dir); empty || err != nil {
		return Absent, nil, err
	}
	folder, findings, err := read(dir, manifest, state.Active != "")
	if errors.Is(err, ErrNoManifest) {
		// Files without a manifest: a crash of the first Write, or not ours.
		return compareFiles(dir, manifest, state, policy.NewFinding(fileSetMismatch, "%v", err))
	}
	if err != nil {
		return Differs, nil, err
	}
	m := folder.Manifest
	if m.Seq < state.Seq && !hasIntegrityFault(findings) {
		return compareFiles(dir, manifest, state, findings...)
	}
	findings = append(findings, state.differences(folder)...)
	if slices.ContainsFunc(findings, isError) {
		return Differs, findings, nil
	}
	return Agrees, findings, nil
}

func isError(f policy.Finding) bool { return f.Severity == policy.SeverityError }

func hasIntegrityFault(fs []policy.Finding) bool {
	return slices.ContainsFunc(fs, func(f policy.Finding) bool { return f.Code == integrityMismatch })
}

func isEmpty(dir string) (bool, error) {
	root, err := openRoot(dir)
	if errors.Is(err, ErrNoManifest) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	defer root.Close()
	names, err := namesIn(root, ".")
	return len(names) == 0 || slices.Equal(names, []string{CorpusDir}), err
}

// compareFiles is Behind when all the policy files there are known to the log
// with these bytes, whatever the manifest lists.
func compareFiles(dir, manifest string, state State, findings ...policy.Finding) (Standing, []policy.Finding, error) {
	root, err := os.OpenRoot(dir + "/") // a pipe in its place is no folder, and is not waited for
	if err != nil {
		return Differs, findings, err
	}
	defer root.Close()
	if _, err := state.missing(root, manifest); err != nil {
		return Differs, append(findings, policy.NewFinding(fileSetMismatch, "%v", err)), nil
	}
	if listsUnknown(root, manifest, state) {
		return Differs, findings, nil
	}
	return Behind, nil, nil
}

// listsUnknown reports a manifest that lists a version or hash the log has not.
func listsUnknown(root *os.Root, manifest string, state State) bool {
	data, err := readRegular(root, manifest, maxManifestBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return false
	}
	m, parsing := parseManifest(data)
	if err != nil || parsing != nil {
		return true
	}
	for _, file := range m.Files {
		v, known := state.version(file.PolicyVersion)
		if !known || policy.Digest(v.Document) != policy.NormalHash(file.SHA256) {
			return true
		}
	}
	return false
}

func (s State) version(policyVersion string) (Version, bool) {
	for _, v := range s.Versions {
		if v.PolicyVersion == policyVersion {
			return v, true
		}
	}
	return Version{}, false
}

// differences compares a readable folder with the log.
func (s State) differences(folder *Folder) []policy.Finding {
	var out []policy.Finding
	differ := func(format string, args ...any) {
		out = append(out, policy.NewFinding(integrityMismatch, format, args...))
	}
	m := folder.Manifest
	if m.Seq != s.Seq {
		differ("the manifest reflects event %d, the log's last policy event is %d", m.Seq, s.Seq)
	}
	if m.Active != s.Active {
		differ("the manifest names %q as active, the log %q", m.Active, s.Active)
	}
	listed := map[string]bool{}
	for i, file := range m.Files {
		listed[file.PolicyVersion] = true
		v, known := s.version(file.PolicyVersion)
		switch {
		case !known:
			differ("%s is in the folder, but the log does not know it", file.PolicyVersion)
		case v.Status != file.Status:
			differ("%s is %s in the manifest and %s in the log", file.PolicyVersion, file.Status, v.Status)
		case folder.Documents[file.PolicyVersion] != nil && !bytes.Equal(folder.Documents[file.PolicyVersion], v.Document):
			differ("%s has other bytes than the log holds", file.PolicyVersion)
			out[len(out)-1].Pointer = hashPointer(i)
		}
	}
	for _, v := range s.Versions {
		if !listed[v.PolicyVersion] {
			differ("%s is in the log, but not in the manifest", v.PolicyVersion)
		}
	}
	return out
}

// hashPointer is the place of a file's hash in the manifest.
func hashPointer(i int) string { return fmt.Sprintf("/files/%d/sha256", i) }

// OnlyHashes reports whether all that is wrong is the bytes of policy files:
// the manifest itself holds together, and the files are those that it lists.
func OnlyHashes(findings []policy.Finding) bool {
	return !slices.ContainsFunc(findings, func(f policy.Finding) bool {
		return isError(f) && !strings.HasSuffix(f.Pointer, "/sha256")
	})
}
