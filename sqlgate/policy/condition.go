package policy

import (
	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/interpreter"
)

// A condition is a when, compiled. Its program is safe for concurrent use.
type condition struct {
	text    string
	program cel.Program
	reads   []*variable // the facts it may read, in the order of facts/v1
	anyOf   []*variable // those of which it asks whether any value matches, or the root alone
	names   map[string]bool

	cost      int // on the largest facts, in units of CEL's cost
	costOfFew int // where no list has more than fewEntries
}

// decide runs the program inside the frame that all conditions of the
// evaluation share.
func (c *condition) decide(e *evaluation) outcome {
	if e.frame == nil {
		frame, err := interpreter.NewExecutionFrame(e)
		if err != nil {
			return failed
		}
		e.frame = frame
	}
	return c.outcome(e.frame)
}

// outcome runs the program over ready values: a cel.Activation, or a frame
// around one. Whatever is not plainly true or false failed: an error, an
// unknown, a value of another type.
func (c *condition) outcome(input any) outcome {
	value, _, err := c.program.Eval(input)
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
