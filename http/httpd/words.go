package httpd

import (
	"cmp"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/agnivade/levenshtein"

	"writegate/commands/fault"
)

// A Param is a query parameter of an endpoint that changes something. People who
// do not know it look for it by one of the words in For; Write is what they
// should write then, "" for its name.
type Param struct {
	Name  string
	For   []string
	Write string
}

// Headers that only some endpoints honour.
const (
	ifMatch        = "If-Match"
	idempotencyKey = "Idempotency-Key"
)

// mostWords is how many words of a request are told to be wrong: an address may hold
// thousands.
const mostWords = 20

// CheckWords refuses a request whose query string or headers say something that
// its endpoint does not listen to: who writes ?preview=true relies on nothing
// being executed. A parameter that is unknown or stands there twice is refused,
// and so is a header that elsewhere asks for a dry run, names an idempotency key
// or makes a change conditional. honoured names those of If-Match and Idempotency-Key
// that the endpoint listens to. The error is a fault validation_failed that names
// what to write instead.
func (c *Call) CheckWords(honoured []string, params ...Param) error {
	if len(c.Request.Trailer) > 0 {
		return errTrailer()
	}
	fields := make(map[string]string)
	for name := range c.Request.Header {
		if instead := misunderstood(name, c.Request.Header); instead != "" {
			fields[clip(name, maxNameInMessage)] = instead
		}
	}
	for name, instead := range map[string]string{
		ifMatch:        "is no condition of this endpoint: what it changes has no revision of its own. Leave the header out",
		idempotencyKey: "is not listened to by this endpoint: sent again, the request is done again. Leave the header out",
	} {
		if _, sent := c.Request.Header[name]; sent && !slices.Contains(honoured, name) {
			fields[name] = instead
		}
	}
	if raw := c.Request.URL.RawQuery; raw != "" {
		query, err := url.ParseQuery(raw)
		if err != nil {
			return unreadableQuery(err)
		}
		for name, values := range query {
			switch {
			case len(fields) >= mostWords:
			case !slices.ContainsFunc(params, func(p Param) bool { return p.Name == name }):
				fields[strings.ToValidUTF8(clip(name, maxNameInMessage), "?")] = unknownParam(name, params)
			case len(values) > 1:
				fields[name] = "must be there once at most"
			}
		}
	}
	if len(fields) > 0 {
		return Invalid(fields)
	}
	return nil
}

// errTrailer refuses fields behind the body (RFC 9110 part 6.5): what a key or a
// credential says there would come too late to be listened to.
func errTrailer() error {
	return fault.New(fault.ValidationFailed, "The request has trailer fields, and nothing listens to those. Send them as headers, before the body.")
}

func unreadableQuery(err error) error {
	return fault.New(fault.ValidationFailed, "The query string can't be read: a parameter is not escaped correctly. Percent-encode its value and send the request again.").Because(err)
}

// unknownParam says what to write instead of a parameter that there is not.
func unknownParam(name string, params []Param) string {
	if len(params) == 0 {
		return "is no parameter: this endpoint takes none in the query string; what it takes stands in the body"
	}
	plain := plainWord(name)
	best, distance := "", 0
	names := make([]string, len(params))
	for i, p := range params {
		names[i] = p.Name
		for _, word := range append([]string{p.Name}, p.For...) {
			d := levenshtein.ComputeDistance(clip(plain, maxNameInMessage), plainWord(word))
			if best == "" || d < distance {
				best, distance = cmp.Or(p.Write, p.Name), d
				if word == p.Name {
					best = p.Name
				}
			}
		}
	}
	return "is no parameter of this endpoint; did you mean " + best + "? It takes " + strings.Join(names, ", ") + ", and all else in the body"
}

var separators = strings.NewReplacer("-", "", "_", "", " ", "") // made once: it is a table of 4 KB

// plainWord is a name without what its spellings differ in.
func plainWord(name string) string { return separators.Replace(strings.ToLower(name)) }

// misunderstood says of a header what to write instead, where other services
// take it for a dry run or an idempotency key; "" for any other header.
func misunderstood(name string, h http.Header) string {
	plain := strings.TrimPrefix(strings.TrimPrefix(plainWord(name), "x"), "gate")
	switch {
	case name == idempotencyKey:
		return ""
	case strings.Contains(plain, "idempoten") || strings.HasPrefix(plain, "repeatability") || strings.HasSuffix(plain, "clienttoken"):
		return "is no header of this service; did you mean Idempotency-Key?"
	case name == ifMatch && slices.ContainsFunc(h[name], func(v string) bool { return strings.TrimSpace(v) == "" }):
		return "is empty: send the ETag that the change rests on, or leave the header out"
	case plain == "ifmatch" && name != ifMatch:
		return "is no header of this service; did you mean If-Match?"
	case plain == "ifnonematch" || plain == "ifunmodifiedsince" || name == "If": // the last one is WebDAV's (RFC 4918)
		return "is no condition of a change here; send the ETag as If-Match"
	case plain == "mode" || namesNoEffect(name):
		return noDryRun
	case strings.Contains(plain, "methodoverride") || plain == "httpmethod":
		return "does not change the method here; send the request with the method that is meant"
	case strings.Contains(plain, "requireapproval") || strings.Contains(plain, "approvalrequired"):
		return "asks for no approval here: the policy says what needs one. Leave the header out"
	case name == "Prefer" && slices.ContainsFunc(h["Prefer"], asksForNoEffect):
		return noDryRun
	case strings.Contains(plain, "maxrows") || strings.Contains(plain, "maxaffected") || name == "Prefer" && slices.ContainsFunc(h["Prefer"], asksForALimit):
		return "limits no rows here: max_rows of a policy's rule does. Leave it out"
	}
	return ""
}

// Words in a header's name by which other services are asked that nothing be done, or
// nothing for good. Those that say it wherever they stand are looked for anywhere, with
// or without dashes (X-Preview-Only, DryRunMode); the others as whole words alone.
// What browsers, proxies and tracers add (Sec-Fetch-Mode, X-Forwarded-..., traceparent,
// X-Request-Id) has none of them.
var (
	noEffectAnywhere = []string{"dryrun", "preview", "simulat", "validateonly", "validationonly", "whatif", "checkonly", "planonly", "explainonly", "donotexecute", "rollbackonly"}
	noEffectWords    = []string{"noop", "noexec", "noexecute", "nocommit", "nowrite", "readonly", "rollback", "testmode", "testonly", "testrun", "safemode", "sandbox", "querymode", "execmode", "executionmode", "runmode", "execute", "explain"}
)

// namesNoEffect reports whether a header's name holds one of these words.
func namesNoEffect(name string) bool {
	plain := plainWord(name)
	if slices.ContainsFunc(noEffectAnywhere, func(word string) bool { return strings.Contains(plain, word) }) {
		return true
	}
	words := strings.FieldsFunc(strings.ToLower(name), func(r rune) bool { return r == '-' || r == '_' })
	for i := range words {
		for k := i + 1; k <= min(i+3, len(words)); k++ {
			if slices.Contains(noEffectWords, strings.Join(words[i:k], "")) {
				return true
			}
		}
	}
	return false
}

const noDryRun = "does not keep anything from being done here; did you mean the query parameter mode=preview of POST /query, or dry_run=true of an agent policy's apply?"

// asksForNoEffect looks for a preference (RFC 7240) that nothing be done.
func asksForNoEffect(preferences string) bool {
	plain := plainWord(preferences)
	return strings.Contains(plain, "dryrun") || strings.Contains(plain, "preview") || strings.Contains(plain, "validateonly") || strings.Contains(plain, "rollback")
}

// asksForALimit looks for a preference that no more rows than some be changed.
func asksForALimit(preferences string) bool {
	return strings.Contains(plainWord(preferences), "maxaffected")
}
