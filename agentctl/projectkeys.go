package agentctl

import (
	"encoding/hex"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// A ProjectKey is one entry of GATE_PROJECT_KEYS; of its value only the digest
// is kept.
type ProjectKey struct {
	ID      string // key_ and the first 16 hex digits of the digest
	Project string
	Label   string
	Scopes  []Scope
	digest  [32]byte
}

// ProjectKeys are all of them.
type ProjectKeys struct {
	byDigest map[[32]byte]*ProjectKey
}

// DefaultProject is the project of an entry that names none.
const DefaultProject = "default"

var nameForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$`)

// ParseProjectKeys reads GATE_PROJECT_KEYS: entries
// [project/label=]value[;scope+scope], separated by commas, where value is a
// key or sha256: and the hex of its digest (spec/v1.md part 2). No error shows
// a value.
func ParseProjectKeys(list string) (*ProjectKeys, error) {
	keys := &ProjectKeys{byDigest: map[[32]byte]*ProjectKey{}}
	labels := map[string]bool{}
	if strings.TrimSpace(list) == "" {
		return keys, nil
	}
	for i, entry := range strings.Split(list, ",") {
		k, err := parseProjectKey(strings.TrimSpace(entry), i+1)
		if err != nil {
			return nil, fmt.Errorf("project key %d: %w", i+1, err)
		}
		if name := k.Project + "/" + k.Label; labels[name] {
			return nil, fmt.Errorf("project key %d: the label %s is there twice", i+1, name)
		}
		if keys.byDigest[k.digest] != nil {
			return nil, fmt.Errorf("project key %d: the same key is there twice", i+1)
		}
		labels[k.Project+"/"+k.Label], keys.byDigest[k.digest] = true, k
	}
	return keys, nil
}

func parseProjectKey(entry string, place int) (*ProjectKey, error) {
	k := &ProjectKey{Project: DefaultProject, Label: fmt.Sprintf("key%d", place), Scopes: KeyScopes}
	value, scopes, scoped := strings.Cut(entry, ";")
	if name, rest, named := strings.Cut(value, "="); named {
		project, label, ok := strings.Cut(name, "/")
		if !ok || !nameForm.MatchString(project) || !nameForm.MatchString(label) {
			return nil, fmt.Errorf("what stands before = is not project/label, of letters, digits, dots, dashes and underscores")
		}
		k.Project, k.Label, value = project, label, rest
	}
	if err := k.setValue(value); err != nil {
		return nil, err
	}
	k.ID = keyID(k.digest)
	if !scoped {
		return k, nil
	}
	parsed, err := ParseScopes(scopes)
	k.Scopes = parsed
	return k, err
}

func (k *ProjectKey) setValue(value string) error {
	if text, hashed := strings.CutPrefix(value, "sha256:"); hashed {
		raw, err := hex.DecodeString(text)
		if err != nil || len(raw) != len(k.digest) {
			return fmt.Errorf("sha256: is followed by 64 hex digits")
		}
		copy(k.digest[:], raw)
		return nil
	}
	if !WellFormed(KeyPrefix, value) {
		return fmt.Errorf("the value is no project key; `gate keys create` makes one")
	}
	k.digest = digestOf(value)
	return nil
}

// ParseScopes reads scopes of a project key, separated by plus signs.
func ParseScopes(text string) ([]Scope, error) {
	var scopes []Scope
	for word := range strings.SplitSeq(text, "+") {
		if !slices.Contains(KeyScopes, Scope(word)) {
			return nil, fmt.Errorf("%q is no scope of a project key", word)
		}
		scopes = append(scopes, Scope(word))
	}
	return scopes, nil
}

// Entry renders a new key's entry for GATE_PROJECT_KEYS, with the digest alone.
func Entry(secret, project, label, scopes string) string {
	digest := digestOf(secret)
	entry := project + "/" + label + "=sha256:" + hex.EncodeToString(digest[:])
	if scopes != "" {
		entry += ";" + scopes
	}
	return entry
}

// Projects lists the projects of all keys, sorted.
func (k *ProjectKeys) Projects() []string {
	var names []string
	for _, key := range k.byDigest {
		names = append(names, key.Project)
	}
	slices.Sort(names)
	return slices.Compact(names)
}
