package controlplane

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"html/template"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"writegate/eventlog/frame"
)

// functions are what the templates may call.
func (v *views) functions() template.FuncMap {
	return template.FuncMap{
		"asset":       func(name string) string { return "/assets/" + v.stamp + "/" + name },
		"when":        when,
		"hour":        hourOf,
		"moment":      func(t time.Time) string { return t.UTC().Format("2 Jan 15:04:05 UTC") },
		"clock":       clockOf,
		"rfc3339":     func(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) },
		"ago":         ago,
		"lasting":     func(seconds any) string { return lasting(wholeSeconds(seconds)) },
		"ms":          milliseconds,
		"count":       countOf,
		"event":       eventWord,
		"tone":        toneOfEvent,
		"decision":    func(d string) string { return wordOr(decisionWords, d) },
		"modeWords":   func(m string) string { return modeWords[m] },
		"state":       func(s string) string { return wordOr(stateWords, s) },
		"channels":    channels,
		"words":       func(s string) string { return strings.ReplaceAll(s, "_", " ") },
		"whyNot":      whyNot,
		"reason":      func(s string) string { return wordOr(reasonWords, s) },
		"check":       func(s string) string { return wordOr(checkWords, s) },
		"anchor":      func(s string) string { return wordOr(anchorWords, s) },
		"route":       func(s string) string { return wordOr(pathWords, s) },
		"basis":       func(s string) string { return wordOr(basisWords, s) },
		"stepWord":    func(s string) string { return wordOr(stepWords, s) },
		"operation":   operationWords,
		"guarding":    guarding,
		"damaged":     (*health).damaged,
		"failedStep":  (*health).failedStep,
		"capital":     capital,
		"size":        sizeOf,
		"cut":         cutText,
		"claim":       func(text string) []sqlPiece { return viewClaim(text).Pieces },
		"headclaim":   headClaim,
		"triedrow":    triedRow,
		"said":        func(text string) []sqlPiece { return viewSaid(text).Pieces },
		"resolved":    resolved,
		"describes":   describes,
		"inAll":       InAll,
		"unenforced":  unenforced,
		"placeholder": func(i int) string { return "$" + strconv.Itoa(i+1) },
		"halves":      func(version string) []string { return strings.SplitN(version, "@", 2) },
		"columns":     columnWords,
		"tables":      tableNames,
		"plural":      plural,
		"plural64":    func(n int64, one, many string) string { return plural(int(n), one, many) },
		"short":       short,
		"minutes": func(n int) string {
			switch {
			case n%1440 == 0:
				return plural(n/1440, "day", "days")
			case n%60 == 0:
				return plural(n/60, "hour", "hours")
			}
			return plural(n, "minute", "minutes")
		},
		"join":    func(list []string) string { return strings.Join(list, ", ") },
		"few":     few,
		"list":    func(items ...any) []any { return items },
		"dict":    dict,
		"has":     func(list []string, s string) bool { return slices.Contains(list, s) },
		"path":    url.PathEscape,
		"lower":   strings.ToLower,
		"query":   func(encoded string) template.URL { return template.URL(encoded) }, // of url.Values, which escapes
		"story":   storyPath,
		"object":  objectOf,
		"outcome": outcomeOf,
		"vouched": vouchedTo,
	}
}

// when is a moment; a script puts the viewer's own zone in the place of UTC.
func when(t any) template.HTML {
	var moment time.Time
	switch t := t.(type) {
	case time.Time:
		moment = t
	case *time.Time:
		if t == nil {
			return ""
		}
		moment = *t
	}
	if moment.IsZero() {
		return ""
	}
	utc := moment.UTC()
	return template.HTML(fmt.Sprintf(`<time datetime="%s" title="%s">%s</time>`, // nothing in it comes from outside
		utc.Format(time.RFC3339Nano), utc.Format("2 Jan 2006 15:04:05.000 UTC"), utc.Format("2 Jan 15:04:05 UTC")))
}

// hourOf is the beginning of an hour; a script puts the viewer's own in its place.
func hourOf(t time.Time) template.HTML {
	utc := t.UTC()
	return template.HTML(fmt.Sprintf(`<time class="hour" datetime="%s" title="%s">%s</time>`, // nothing in it comes from outside
		utc.Format(time.RFC3339Nano), utc.Format("2 Jan 2006 15:04 UTC"), utc.Format("2 Jan 15:04 UTC")))
}

// clockOf is a moment of this day; a script puts the viewer's own in its place.
func clockOf(t *time.Time) template.HTML {
	utc := t.UTC()
	return template.HTML(fmt.Sprintf(` <time class="clock" datetime="%s" title="%s">%s</time>`, // nothing in it comes from outside
		utc.Format(time.RFC3339Nano), utc.Format("2 Jan 2006 15:04 UTC"), utc.Format("15:04 UTC")))
}

// wholeSeconds takes what templates have: int and int64.
func wholeSeconds(n any) int64 {
	switch n := n.(type) {
	case int:
		return int64(n)
	case int64:
		return n
	}
	return 0
}

func countOf(n any) string {
	switch n := n.(type) {
	case int:
		return thousands(int64(n))
	case int64:
		return thousands(n)
	case uint64:
		return thousands(int64(n))
	case *int:
		return thousands(int64(*n))
	case *int64:
		return thousands(*n)
	case *uint64:
		return thousands(int64(*n))
	}
	return fmt.Sprint(n)
}

func wordOr(words map[string]string, s string) string {
	if w, ok := words[s]; ok {
		return w
	}
	return strings.ReplaceAll(s, "_", " ")
}

var stateWords = map[string]string{
	"not_executed": "Not executed", "dispatched": "Running", "success": "Ran", "failure": "Failed", "unknown": "Outcome unknown",
	"pending": "Pending", "expired": "Expired", "approve": "Approved", "reject": "Rejected", "resolved": "Resolved",
	"active": "Active", "inactive": "Inactive", "suspended": "Suspended", "verified": "Verified", "registered": "Not verified yet", "failed": "Failed", "drifted": "Changed since", "disabled": "Off", "candidate": "Candidate", "archived": "Archived", "rejected": "Refused",
	"committed": "It was applied", "aborted": "It was not applied", "in_progress": "Still running", "not_knowable": "Cannot be known",
	"ok": "OK", "partial": "Partly checked", "corruption_detected": "Damaged",
}

// toneOfEvent is the class that colours an event; its word says the same.
func toneOfEvent(e auditEvent) string {
	switch {
	case e.Decision == "BLOCK" || strings.HasPrefix(e.EventType, "audit_corruption") || e.EventType == "execution_failure" || e.EventType == "query_rejected":
		return "bad"
	case e.Decision == "REQUIRE_APPROVAL" || e.EventType == "execution_state_unknown" || e.EventType == "emergency_bypass" || e.EventType == "approval_created" || e.EventType == "db_unavailable" || e.EventType == "health_fail":
		return "warn"
	case e.Decision == "ALLOW" || e.EventType == "execution_success" || outcomeOf(e) == "committed":
		return "good"
	}
	return "calm"
}

// objectOf is what an event of agents, tools or policies is about, as it names it.
func objectOf(e auditEvent) string {
	if !strings.HasPrefix(e.EventType, "agent_") && !strings.HasPrefix(e.EventType, "tool_") && !strings.HasPrefix(e.EventType, "policy_") {
		return ""
	}
	var about struct {
		Name    string `json:"name"`
		Version string `json:"policy_version"`
		Agent   string `json:"agent_id"`
		Tool    string `json:"tool_id"`
	}
	_ = json.Unmarshal(e.Payload, &about) // a payload that can't be read names nothing
	return cmp.Or(about.Name, about.Version, about.Agent, about.Tool)
}

// outcomeOf is what the database said of an execution that nobody knew the end of.
func outcomeOf(e auditEvent) string {
	var payload struct {
		Outcome string `json:"outcome"`
	}
	if e.EventType == "execution_outcome_resolved" {
		_ = json.Unmarshal(e.Payload, &payload) // a payload that can't be read says nothing
	}
	return payload.Outcome
}

// vouchedTo is the last event that the strongest of a report's anchors knows.
func vouchedTo(r frame.Report) (seq uint64) {
	for _, a := range r.Anchors {
		if a.Level == r.AnchorLevel && a.Result == frame.AnchorMatch {
			seq = max(seq, a.Seq)
		}
	}
	return seq
}

// A resolution is what a person decided about an approval; the claims of its event are
// those of who asked.
type resolution struct{ Resolution, By, Note string }

func resolved(e auditEvent) (r resolution) {
	if e.EventType == "approval_resolved" {
		_ = json.Unmarshal(e.Payload, &r) // a payload that can't be read is shown as that of an event
	}
	return r
}

func short(s string) string {
	if len(s) <= 16 {
		return s
	}
	return s[:10] + "…" + s[len(s)-4:]
}

// columnWords say which columns are written; a star is all of a table.
func columnWords(list []string) string {
	words := make([]string, len(list))
	for i, name := range list {
		words[i] = name
		if table, all := strings.CutSuffix(name, ".*"); all {
			words[i] = "all of " + tableNames([]string{table})
		}
	}
	return strings.Join(words, ", ")
}

// dict makes a map for a template that takes more than one value.
func dict(pairs ...any) (map[string]any, error) {
	if len(pairs)%2 != 0 {
		return nil, fmt.Errorf("dict takes pairs")
	}
	m := make(map[string]any, len(pairs)/2)
	for i := 0; i < len(pairs); i += 2 {
		name, ok := pairs[i].(string)
		if !ok {
			return nil, fmt.Errorf("dict: name %d is no text", i/2)
		}
		m[name] = pairs[i+1]
	}
	return m, nil
}

func indented(value any) string {
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(value); err != nil {
		return ""
	}
	return strings.TrimSuffix(out.String(), "\n")
}

// cutText is the beginning of a text for who hears it, and says that it is cut.
func cutText(s string) string {
	if len(s) <= shownBytes {
		return s
	}
	return fmt.Sprintf("%s … cut, of %s", cutRunes(s, shownBytes), plural(len(s), "byte", "bytes"))
}
