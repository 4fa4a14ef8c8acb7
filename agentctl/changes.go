package agentctl

import (
	"sync"

	"writegate/sqlgate"
)

// changes counts, for each project, what changed of its policies and tools, so that a
// decision is recorded under what it read. Its lock is held around an append alone.
type changes struct {
	mu    sync.RWMutex
	count map[string]uint64
}

// of is the count of a project, for unchanged. What is read of the project's policies
// and tools afterwards has all the changes of that count.
func (c *changes) of(project string) uint64 {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.count[project]
}

// unchanged writes a decision, or gives sqlgate.ErrPolicyChanged where the project has
// another count.
func (c *changes) unchanged(project string, count uint64, write func() error) error {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if c.count[project] != count {
		return sqlgate.ErrPolicyChanged
	}
	return write()
}

// change writes a change of a project, and counts it whatever became of it.
func (c *changes) change(project string, write func() error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.count == nil {
		c.count = map[string]uint64{}
	}
	c.count[project]++
	return write()
}
