package httpd

import (
	"net/http"
	"strings"
)

// A Trace is the place of a request in a distributed trace, as the caller's
// traceparent header has it (W3C Trace Context, level 1). The gate makes no spans
// of its own: it says under which one it was asked.
type Trace struct {
	TraceID string // 32 hex digits; "" = none
	SpanID  string // of the caller's span, 16 hex digits
}

// String joins both, "" where there is none.
func (t Trace) String() string {
	if t.TraceID == "" {
		return ""
	}
	return t.TraceID + "-" + t.SpanID
}

// lengths of the header's parts, and of all four with the dashes between.
const (
	traceVersion, traceIDLength, spanIDLength, flagsLength = 2, 32, 16, 2
	traceparentLength                                      = traceVersion + traceIDLength + spanIDLength + flagsLength + 3
)

// traceOf reads the header. One that is not as the specification says, or that is
// there twice, counts as none: a trace is no reason to refuse a request. Of a
// later version the parts of this one are read.
func traceOf(h http.Header) Trace {
	values := h.Values("Traceparent")
	if len(values) != 1 || len(values[0]) < traceparentLength {
		return Trace{}
	}
	text, rest := values[0][:traceparentLength], values[0][traceparentLength:]
	parts := strings.Split(text, "-")
	if len(parts) != 4 || len(parts[0]) != traceVersion || len(parts[1]) != traceIDLength || len(parts[2]) != spanIDLength {
		return Trace{}
	}
	for _, p := range parts {
		if strings.Trim(p, "0123456789abcdef") != "" {
			return Trace{}
		}
	}
	later := parts[0] != "00"
	switch {
	case parts[0] == "ff", strings.Trim(parts[1], "0") == "", strings.Trim(parts[2], "0") == "":
		return Trace{}
	case rest != "" && (!later || rest[0] != '-'):
		return Trace{}
	}
	return Trace{parts[1], parts[2]}
}
