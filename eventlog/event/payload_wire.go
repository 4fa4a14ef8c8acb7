package event

// TypeWireLoginFailed counts connections to the wire listener that were refused
// before anybody was let in.
const TypeWireLoginFailed Type = "wire_login_failed"

// WireLoginFailed is written at once the first time, then at most once per client
// and minute, as a Flood is. It does not tell an unknown user from a wrong
// password: the log is open to read.
type WireLoginFailed struct {
	Cause    string // of the last one: password, agent_token, certificate, tls_required, tls_handshake or startup
	Client   string // its address
	Count    int    // how many it stands for
	SQLState string // what the client was told last; "" = nothing could be said to it
	User     string // that the last one claimed; "" = it was refused before it named one
}

func (*WireLoginFailed) EventType() Type         { return TypeWireLoginFailed }
func (p *WireLoginFailed) Fields() Payload       { return write(5, p.form) }
func (p *WireLoginFailed) Parse(l Payload) error { return read(l, p.form) }

func (p *WireLoginFailed) form(f *form) {
	f.str("cause", &p.Cause, need)
	f.str("client", &p.Client, need)
	num(f, "count", &p.Count, need)
	f.str("sqlstate", &p.SQLState, may)
	f.str("user", &p.User, may)
}

// Types of a CancelRequest at the wire listener (spec/gate.md part 6). The
// connection that it is for stands in the payload, its claims in the context
// where the key was known; a forwarded one has the execution there too.
const (
	TypeCancelReceived  Type = "GATE_CANCEL_REQUEST_RECEIVED"
	TypeCancelForwarded Type = "GATE_CANCEL_FORWARDED_TO_BACKEND"
	TypeCancelRejected  Type = "GATE_CANCEL_REJECTED"
	TypeCancelUnsent    Type = "GATE_CANCEL_BEFORE_DISPATCH"
)

// CancelReceived is written before anything is done about a CancelRequest.
type CancelReceived struct {
	Client      string // the address that sent it
	WireSession string // "" = nobody has the key
}

func (*CancelReceived) EventType() Type         { return TypeCancelReceived }
func (p *CancelReceived) Fields() Payload       { return write(2, p.form) }
func (p *CancelReceived) Parse(l Payload) error { return read(l, p.form) }

func (p *CancelReceived) form(f *form) {
	f.str("client", &p.Client, need)
	f.str("wire_session", &p.WireSession, may)
}

// CancelForwarded says that the database was asked to end the execution.
type CancelForwarded struct {
	Client      string
	WireSession string
}

func (*CancelForwarded) EventType() Type         { return TypeCancelForwarded }
func (p *CancelForwarded) Fields() Payload       { return write(2, p.form) }
func (p *CancelForwarded) Parse(l Payload) error { return read(l, p.form) }

func (p *CancelForwarded) form(f *form) {
	f.str("client", &p.Client, need)
	f.str("wire_session", &p.WireSession, need)
}

// CancelUnsent says that what the CancelRequest was for had not been sent to the
// database, and that the gate ends it in its place. The execution is in the context
// where one was begun.
type CancelUnsent struct {
	Client      string
	WireSession string
}

func (*CancelUnsent) EventType() Type         { return TypeCancelUnsent }
func (p *CancelUnsent) Fields() Payload       { return write(2, p.form) }
func (p *CancelUnsent) Parse(l Payload) error { return read(l, p.form) }

func (p *CancelUnsent) form(f *form) {
	f.str("client", &p.Client, need)
	f.str("wire_session", &p.WireSession, need)
}

// CancelRejected says that a CancelRequest went nowhere, and why. Under a flood
// one event stands for many.
type CancelRejected struct {
	Cause       string // as the context's reason_code
	Client      string
	Count       int // how many it stands for
	WireSession string
}

func (*CancelRejected) EventType() Type         { return TypeCancelRejected }
func (p *CancelRejected) Fields() Payload       { return write(4, p.form) }
func (p *CancelRejected) Parse(l Payload) error { return read(l, p.form) }

func (p *CancelRejected) form(f *form) {
	f.str("cause", &p.Cause, need)
	f.str("client", &p.Client, need)
	num(f, "count", &p.Count, need)
	f.str("wire_session", &p.WireSession, may)
}
