package toolcheck

import (
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"regexp"
	"slices"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// A Definition is what a server says of a tool, as hashes: one of the whole, and
// short ones of its parts, from which a later verification tells where it is
// another. The text itself is not kept.
type Definition struct {
	// Fingerprint is the SHA-256 of the canonical JSON {annotations, description,
	// inputSchema, name, outputSchema, title} with the members that the server
	// sent, in hexadecimal.
	Fingerprint string
	// Parts gives the first 16 hexadecimal digits of the SHA-256 of each part, by
	// JSON pointer.
	Parts map[string]string
}

// maxParts bounds how many properties get a part of their own.
const maxParts = 200

// plainName is a member's name that may be told on: it is an identifier and
// nothing else.
var plainName = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,64}$`)

// A listedTool is one tool of an answer to tools/list, with its members as they
// were received. Members that the contract does not name are not looked at.
type listedTool struct {
	Name         string         `json:"name"`
	Title        jsontext.Value `json:"title,omitzero"`
	Description  jsontext.Value `json:"description,omitzero"`
	InputSchema  jsontext.Value `json:"inputSchema,omitzero"`
	OutputSchema jsontext.Value `json:"outputSchema,omitzero"`
	Annotations  jsontext.Value `json:"annotations,omitzero"`
}

// define takes the hashes of a tool.
func define(tool listedTool) (Definition, error) {
	text, err := json.Marshal(tool)
	if err != nil {
		return Definition{}, err
	}
	whole, err := canonical(text)
	if err != nil {
		return Definition{}, err
	}
	sum := sha256.Sum256(whole)
	d := Definition{Fingerprint: hex.EncodeToString(sum[:]), Parts: map[string]string{}}
	for path, value := range map[string]jsontext.Value{"/title": tool.Title, "/description": tool.Description} {
		if err := d.add(path, value); err != nil {
			return Definition{}, err
		}
	}
	for _, part := range []struct {
		path   string
		value  jsontext.Value
		within string // member whose members are parts of their own; "" for the value itself
	}{
		{"/inputSchema", tool.InputSchema, "properties"},
		{"/outputSchema", tool.OutputSchema, "properties"},
		{"/annotations", tool.Annotations, ""},
	} {
		if err := d.addObject(part.path, part.value, part.within); err != nil {
			return Definition{}, err
		}
	}
	return d, nil
}

func (d Definition) add(path string, value jsontext.Value) error {
	if value == nil {
		return nil
	}
	text, err := canonical(value)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(text)
	d.Parts[path] = hex.EncodeToString(sum[:8])
	return nil
}

// addObject gives each member with a plain name a part of its own, and what is
// left one for itself. The members are those of the value, or of its member
// within.
func (d Definition) addObject(path string, value jsontext.Value, within string) error {
	outer, ok := object(value)
	if !ok {
		return d.add(path, value)
	}
	inner, prefix := outer, path
	if within != "" {
		if inner, ok = object(outer[within]); !ok {
			return d.add(path, value)
		}
		prefix += "/" + within
	}
	for _, name := range slices.Sorted(maps.Keys(inner)) {
		if !plainName.MatchString(name) || len(d.Parts) >= maxParts {
			continue
		}
		if err := d.add(prefix+"/"+name, inner[name]); err != nil {
			return err
		}
		delete(inner, name)
	}
	if within != "" {
		left, err := json.Marshal(inner)
		if err != nil {
			return err
		}
		outer[within] = left
	}
	left, err := json.Marshal(outer)
	if err != nil {
		return err
	}
	return d.add(path, left)
}

func object(value jsontext.Value) (members map[string]jsontext.Value, ok bool) {
	return members, value.Kind() == '{' && json.Unmarshal(value, &members) == nil
}

// changes tells where current is not what was pinned, in the order of the paths.
// A part that was counted apart on one side and with the rest on the other shows
// in both places.
func changes(pinned, current Definition) []Change {
	var found []Change
	paths := slices.Concat(slices.Collect(maps.Keys(pinned.Parts)), slices.Collect(maps.Keys(current.Parts)))
	slices.Sort(paths)
	for _, path := range slices.Compact(paths) {
		before, was := pinned.Parts[path]
		after, is := current.Parts[path]
		switch {
		case was && !is:
			found = append(found, Change{path, "removed"})
		case is && !was:
			found = append(found, Change{path, "added"})
		case before != after:
			found = append(found, Change{path, "modified"})
		}
	}
	if len(found) == 0 {
		// The fingerprints differ and no short hash does.
		found = append(found, Change{"", "modified"})
	}
	return found
}
