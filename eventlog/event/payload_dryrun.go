package event

// What evidence calls a dry run: a statement that runs and is always rolled back. Its
// request has the purpose, its decision the run, and its dispatch the path.
const (
	PurposeDryRun = "dry_run"
	RunDryRun     = "dry_run"
	PathDryRun    = "dry_run"
)

// DryRunTerms are what the rules of the policy take of a dry run.
type DryRunTerms struct {
	Rows bool // whoever approves may be shown rows
}

func (t *DryRunTerms) form(f *form) { f.flag("rows", &t.Rows, may) }

// DryRunResult is what a dry run would have changed. Of the rows that somebody may be shown
// the log has a digest alone.
type DryRunResult struct {
	Tables     []TableRows // in the order of their names
	Shown      int         // how many rows were kept to be shown
	RowsSHA256 [32]byte    // of these as JSON, with a nonce that is kept beside them; zero = none were
}

// TableRows are the rows of one table that a statement would have changed. Those of
// partitions count for the table that they are partitions of; a row that moves from one to
// another is deleted and inserted.
type TableRows struct {
	Table                      string // schema.table
	Inserted, Updated, Deleted int
	Cascade                    bool // the statement does not name it: a foreign key leads there
}

func (r *DryRunResult) form(f *form) {
	f.hash("rows_sha256", &r.RowsSHA256, may)
	num(f, "shown", &r.Shown, may)
	parts(f, "tables", &r.Tables, (*TableRows).form)
}

func (t *TableRows) form(f *form) {
	f.flag("cascade", &t.Cascade, may)
	num(f, "deleted", &t.Deleted, may)
	num(f, "inserted", &t.Inserted, may)
	f.str("table", &t.Table, need)
	num(f, "updated", &t.Updated, may)
}
