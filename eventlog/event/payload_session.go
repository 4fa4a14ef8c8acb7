package event

// Types of a prepared-statement session's life. Its id stands in the context,
// with the claims that it is bound to. Sessions lie in memory: those that are
// open end with the run, at its shutdown or where the next startup stands, and
// no event of their own says so.
const (
	TypeSessionOpened Type = "session_opened"
	TypeSessionClosed Type = "session_closed"
)

// SessionOpened binds a session to the identity of its first PREPARE, whose
// request_received and decision_recorded stand before it in the same append.
type SessionOpened struct {
	Role      string
	Host      string
	Principal string // the verified identity; "" = none
}

func (*SessionOpened) EventType() Type         { return TypeSessionOpened }
func (p *SessionOpened) Fields() Payload       { return write(3, p.form) }
func (p *SessionOpened) Parse(l Payload) error { return read(l, p.form) }

func (p *SessionOpened) form(f *form) {
	f.str("host", &p.Host, need)
	f.str("principal", &p.Principal, may)
	f.str("role", &p.Role, need)
}

// SessionIdle is the reason of a session that nobody used for too long.
const SessionIdle = "idle"

// SessionClosed ends a session and forgets its prepared statements.
type SessionClosed struct {
	Reason     string // SessionIdle
	Statements int    // that were prepared in it when it ended
}

func (*SessionClosed) EventType() Type         { return TypeSessionClosed }
func (p *SessionClosed) Fields() Payload       { return write(2, p.form) }
func (p *SessionClosed) Parse(l Payload) error { return read(l, p.form) }

func (p *SessionClosed) form(f *form) {
	f.str("reason", &p.Reason, need)
	num(f, "statements", &p.Statements, may)
}
