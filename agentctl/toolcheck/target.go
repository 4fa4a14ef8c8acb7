package toolcheck

// Types of tools.
const (
	TypeMCP      = "mcp"
	TypeHTTP     = "http"
	TypeFunction = "function"
)

// Types of authentication.
const (
	AuthNone   = "none"
	AuthBearer = "bearer"
	AuthHeader = "header"
)

// A Target is what is verified: the part of a tool that its owner declared.
type Target struct {
	Client   string // who asks: clients wait by turns to have a schema checked
	Type     string
	URL      string // of mcp and http
	ToolName string // the name under which an MCP server lists it
	Probe    Probe  // of http
	Auth     Auth

	InputSchema  []byte // JSON text; empty when none is declared
	OutputSchema []byte

	// Pinned is the definition that verifications are held against; empty before
	// the first that passed.
	Pinned Definition
	// Accept is the fingerprint that a person accepts in place of the pinned one.
	Accept string
}

// A Probe is the one request that an HTTP tool is verified with. Zero values
// mean GET, "/" and any status from 200 to 299.
type Probe struct {
	Method       string // GET or HEAD
	Path         string // absolute, on the host of the URL; may carry a query
	ExpectStatus []int
}

// Auth says how the gate presents itself to the tool. Secret is a name, never a
// value.
type Auth struct {
	Type   string
	Header string // of type header
	Secret string
}
