package egress

import (
	"errors"
	"fmt"
)

// A Code says why a visit failed, in the words of spec/v1.md part 12.
type Code string

// The codes that a visit itself can give. Checks built on it add their own.
const (
	URLForbidden     Code = "url_forbidden"      // the URL is not one that may be visited
	Blocked          Code = "egress_blocked"     // the address is not one that may be reached
	DNSFailed        Code = "dns_failed"         // the name has no address
	ConnectFailed    Code = "connect_failed"     // nobody answers there
	TLSFailed        Code = "tls_failed"         // the certificate or the handshake is not good
	Timeout          Code = "timeout"            // the deadline came first
	ResponseTooLarge Code = "response_too_large" // headers or a body without a sensible end
	RedirectBlocked  Code = "redirect_blocked"   // sent on to where it may not go
	ProtocolError    Code = "protocol_error"     // what came back is not HTTP
)

// A Refusal is a visit that failed. Why is for people and holds nothing that the
// other side sent.
type Refusal struct {
	Code Code
	Why  string
}

func (r *Refusal) Error() string { return string(r.Code) + ": " + r.Why }

func refuse(code Code, format string, args ...any) *Refusal {
	return &Refusal{Code: code, Why: fmt.Sprintf(format, args...)}
}

func asRefusal(err error) (*Refusal, bool) {
	var r *Refusal
	ok := errors.As(err, &r)
	return r, ok
}
