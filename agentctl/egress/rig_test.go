package egress_test

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"writegate/agentctl/egress"
	"writegate/fixtures/loopback"
)

// guardOf judges as an operator has it who opened the public side of the internet
// and the ports of all of its servers: only the judgement of the host stands
// before the inside.
func guardOf(n *loopback.Internet) *egress.Guard {
	return egress.New(egress.Rules{Networks: loopback.PublicSide(), Ports: n.Ports}, egress.WithResolver(n.Names.Resolver()), egress.WithRoots(n.Authority.Pool()))
}

// visit gets url through the guard and reads its body.
func visit(t testing.TB, guard *egress.Guard, url string, credential egress.Credential) (*http.Response, int, *egress.Refusal) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	return visitUntil(t, ctx, guard, url, credential)
}

func visitUntil(t testing.TB, ctx context.Context, guard *egress.Guard, url string, credential egress.Credential) (*http.Response, int, *egress.Refusal) {
	target, err := guard.ParseURL(url)
	if err != nil {
		var refusal *egress.Refusal
		require.ErrorAs(t, err, &refusal)
		return nil, 0, refusal
	}
	v := guard.Visit(ctx, target, credential)
	defer v.Close()
	resp, err := v.Client().Get(target.String())
	if err != nil {
		require.NotNil(t, v.Refusal(), "an error without a refusal: %v", err)
		return nil, 0, v.Refusal()
	}
	n, err := readAll(resp)
	if err != nil {
		require.NotNil(t, v.Refusal(), "an error without a refusal: %v", err)
	}
	return resp, n, v.Refusal()
}

func readAll(resp *http.Response) (int, error) {
	defer func() { _ = resp.Body.Close() }()
	total, chunk := 0, make([]byte, 4096)
	for {
		n, err := resp.Body.Read(chunk)
		total += n
		if err != nil {
			if err.Error() == "EOF" {
				err = nil
			}
			return total, err
		}
	}
}
