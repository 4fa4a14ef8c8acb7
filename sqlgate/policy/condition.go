package policy

import (
	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/types"
)

// A condition is a when, compiled. Its program is safe for concurrent use.
type condition struct {
	text    string
	program cel.Program
	reads   []*variable // the facts it may read, in the order of facts/v1
}

// outcome runs the program over ready values. Whatever is not plainly true or
// false failed: an error, an unknown, a value of another type.
func (c *condition) outcome(e cel.Activation) outcome {
	value, _, err := c.program.Eval(e)
	if err != nil {
		return failed
	}
	switch value {
	case types.True:
		return matched
	case types.False:
		return notMatched
	default:
		return failed
	}
}
