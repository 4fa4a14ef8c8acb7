package toolcheck

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"slices"

	"writegate/agentctl/egress"
)

// verifyHTTP sends the probe, compares the status, and reads the body to its end
// or its limit without looking at it.
func (c *Checker) verifyHTTP(ctx context.Context, r run, target Target, u *url.URL, credential egress.Credential) Result {
	visit := c.guard.Visit(ctx, u, credential)
	defer visit.Close()
	status, ok := probe(ctx, visit, target.Probe, u)
	if connection := visit.Connection(); connection != nil {
		r.pass(Step{Name: StepConnect, Address: connection.Address, TLSNotAfter: connection.TLSNotAfter})
	}
	if !ok {
		refusal := visit.Refusal()
		if refusal == nil {
			refusal = &egress.Refusal{Code: egress.ProtocolError, Why: "The server's answer is not HTTP."}
		}
		step := StepProbe
		if visit.Connection() == nil {
			step = StepConnect
		}
		return r.refused(step, refusal)
	}
	step := Step{Name: StepProbe, HTTPStatus: status}
	if target.Probe.expects(status) {
		r.pass(step)
		return r.passed(Definition{})
	}
	if status == http.StatusUnauthorized || status == http.StatusForbidden {
		return r.fail(step, AuthRequired, "The server asks for credentials, or for others.")
	}
	return r.fail(step, HTTPStatus, "The server answered with a status that is not among the expected ones.")
}

func probe(ctx context.Context, visit *egress.Visit, probe Probe, u *url.URL) (status int, ok bool) {
	method := probe.Method
	if method == "" {
		method = http.MethodGet
	}
	req, err := http.NewRequestWithContext(ctx, method, u.String(), nil)
	if err != nil {
		return 0, false
	}
	resp, err := visit.Client().Do(req)
	if err != nil {
		return 0, false
	}
	_, err = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode, resp.Body.Close() == nil && err == nil
}

func (p Probe) expects(status int) bool {
	if len(p.ExpectStatus) == 0 {
		return status/100 == 2
	}
	return slices.Contains(p.ExpectStatus, status)
}

// ProbeURL is where an HTTP tool is asked: the probe's path on the URL's host.
func ProbeURL(guard *egress.Guard, target Target) (*url.URL, error) {
	u, err := guard.ParseURL(target.URL)
	if err != nil {
		return nil, err
	}
	path := target.Probe.Path
	if path == "" {
		path = "/"
	}
	if path[0] != '/' {
		return nil, &egress.Refusal{Code: egress.URLForbidden, Why: "The probe's path does not begin with a slash."}
	}
	return guard.ParseURL(u.Scheme + "://" + u.Host + path)
}
