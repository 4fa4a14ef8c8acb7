package policy

import "fmt"

// maxNames bounds the bytes of names, patterns and values that a trace or a comparison lists.
// Each rule lists what its checks ask for, and a few lists may stand in hundreds of rules.
const maxNames = 1 << 20

// A room is what is left of it.
type room int

// fit cuts the lists in a value where there is no more room; the last entry says how many
// are left out.
func (r *room) fit(v any) any {
	switch v := v.(type) {
	case []string:
		return r.list(v)
	case string:
		*r -= room(len(v))
	case map[string]any:
		cut := make(map[string]any, len(v))
		for key, inner := range v {
			cut[key] = r.fit(inner)
		}
		return cut
	}
	return v
}

func (r *room) list(list []string) []string {
	for i, s := range list {
		if *r -= room(len(s) + len(`"",`)); *r < 0 {
			return append(list[:i:i], fmt.Sprintf("and %d more", len(list)-i))
		}
	}
	return list
}

// someOf is a list of which a message names a few.
func someOf(list []string) []string {
	const most = 30
	if left := len(list) - most; left > 0 {
		return append(list[:most:most], fmt.Sprintf("and %d more", left))
	}
	return list
}
