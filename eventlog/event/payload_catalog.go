package event

// TypeCatalogRecorded is the type of what was read of the database's catalogues.
const TypeCatalogRecorded Type = "catalog_recorded"

// CatalogRecorded keeps a snapshot of the database's catalogues by its hash. It is durable
// before the first decision that was made by the snapshot, so that a log alone has what stood
// behind the names of a statement. A large snapshot is kept in several events, its parts, which
// stand in their order; with a first part it begins anew.
type CatalogRecorded struct {
	Base    [32]byte // the snapshot, kept before in this log, that the content is the difference to; zero = none
	Content []byte   // of this part, as package catalog packs it
	Hash    [32]byte
	Part    int // from 1
	Parts   int
	Salt    Salt
}

func (*CatalogRecorded) EventType() Type         { return TypeCatalogRecorded }
func (p *CatalogRecorded) Fields() Payload       { return write(6, p.form) }
func (p *CatalogRecorded) Parse(l Payload) error { return read(l, p.form) }

func (p *CatalogRecorded) form(f *form) {
	f.hash("base", &p.Base, may)
	f.bytes("content", &p.Content, may)
	f.hash("hash", &p.Hash, need)
	num(f, "part", &p.Part, need)
	num(f, "parts", &p.Parts, need)
	f.salt(&p.Salt)
}

// A CatalogUse is the snapshot of the catalogues that a statement was judged by, and what of
// its facts its text does not tell, so that these can be found again and compared. Without that
// snapshot the facts would be those without Added, and with Class and Where where these are set.
type CatalogUse struct {
	Added       *CatalogAdded // nil = nothing
	Class       string        // "" = that of the facts
	Defaults    bool          // an UPDATE in the text may name DEFAULT
	Hash        [32]byte
	Operators   []string // of the text, where one of the snapshot may be meant
	Plain       []string // types that are not built in and, by the snapshot, run no code of the users': the facts are those of the statement with them
	ServerMajor int      // that its views were read for; 0 = it was not known
	Where       []string // none = that of the facts
	Wider       bool     // facts have more than the snapshot tells of: of temporary relations, or of calls that neither text nor snapshot names
}

// CatalogAdded are facts that a text does not tell, by their names in DecisionFacts.
type CatalogAdded struct {
	ColumnsWritten []string
	Functions      []string
	RiskSignals    []string
	TablesRead     []string
	TablesWritten  []string
}

func (u *CatalogUse) form(f *form) {
	part(f, "added", &u.Added, (*CatalogAdded).form)
	f.str("class", &u.Class, may)
	f.flag("defaults", &u.Defaults, may)
	f.hash("hash", &u.Hash, need)
	f.strs("operators", &u.Operators, may)
	f.strs("plain", &u.Plain, may)
	num(f, "server_major", &u.ServerMajor, may)
	f.strs("where", &u.Where, may)
	f.flag("wider", &u.Wider, may)
}

func (a *CatalogAdded) form(f *form) {
	f.strs("columns_written", &a.ColumnsWritten, may)
	f.strs("functions", &a.Functions, may)
	f.strs("risk_signals", &a.RiskSignals, may)
	f.strs("tables_read", &a.TablesRead, may)
	f.strs("tables_written", &a.TablesWritten, may)
}
