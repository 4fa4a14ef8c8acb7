package httpd

import (
	"context"
	"net/http"
)

// A Statuser is an answer with a status of its own; any other answer is 200.
type Statuser interface{ HTTPStatus() int }

// Serve makes a handler of a plain function: the body becomes a Req, what the
// function returns becomes the answer.
func Serve[Req, Resp any](fn func(ctx context.Context, c *Call, req *Req) (Resp, error)) Handler {
	return func(c *Call) error {
		req := new(Req)
		if err := c.Decode(req); err != nil {
			return err
		}
		return answer(c, func(ctx context.Context) (Resp, error) { return fn(ctx, c, req) })
	}
}

// Get makes a handler of a function that needs no body.
func Get[Resp any](fn func(ctx context.Context, c *Call) (Resp, error)) Handler {
	return func(c *Call) error {
		return answer(c, func(ctx context.Context) (Resp, error) { return fn(ctx, c) })
	}
}

func answer[Resp any](c *Call, fn func(context.Context) (Resp, error)) error {
	resp, err := fn(c.Request.Context())
	if err != nil {
		return err
	}
	status := http.StatusOK
	if s, ok := any(resp).(Statuser); ok {
		status = s.HTTPStatus()
	}
	c.JSON(status, resp)
	return nil
}
