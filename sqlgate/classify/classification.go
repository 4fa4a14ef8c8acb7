package classify

import (
	"context"
	"time"
)

// Versions of the classification contract (spec/gate.md part 9). The names,
// values and meanings of LockedVersion stay as they are written there. A
// statement whose facts hold more than that has Version, which is also that of
// this classifier: ON CONFLICT DO UPDATE and the arms of MERGE are in
// query_types, tables that a statement reaches without naming them are
// schema.* or ?.*, and more columns of a table than a list holds are all columns.
const (
	LockedVersion = "1.0"
	Version       = "1.1"
)

// A Classification is everything the gate knows about one statement from its
// text. The first twelve fields are the facts of design/policy.md part 3 under
// the same names; the rest is for the executor and for people and no rule sees
// it. Lists are sorted by bytes, without duplicates and never nil; a list past
// 256 entries is cut and raises oversized_facts, but for more columns of one table
// than that, which are schema.table.*. No constant of the SQL text
// appears in any field, NormalizedSQL included; Session and Control alone have some.
//
// A Classification may be shared between requests: treat it as immutable.
type Classification struct {
	QueryType      string   `json:"query_type"`      // type of the root node
	QueryTypes     []string `json:"query_types"`     // types of the root, CTEs, arms of MERGE, DO UPDATE, and what EXPLAIN, COPY and their kin hold
	Class          string   `json:"class"`           // strictest class of all nodes and calls
	SafeRead       bool     `json:"safe_read"`       // class is read and there is no risk signal
	TablesRead     []string `json:"tables_read"`     // schema.table
	TablesWritten  []string `json:"tables_written"`  // schema.table; schema.* and ?.* for tables that are reached without their names
	ColumnsWritten []string `json:"columns_written"` // schema.table.column, or schema.table.*
	Functions      []string `json:"functions"`       // built-ins bare, all else schema.name
	RiskSignals    []string `json:"risk_signals"`
	Flags          []string `json:"flags"`
	Where          []string `json:"where"` // one value for each UPDATE, DELETE, MERGE and DO UPDATE; equal ones stand once
	Fingerprint    string   `json:"fingerprint"`

	ClassificationVersion string   `json:"classification_version"` // LockedVersion, or Version where a fact holds more
	Run                   string   `json:"run"`
	Signals               []Signal `json:"signals"`
	Advice                []string `json:"advice"`
	Engine                Engine   `json:"engine"`

	Start         int    `json:"-"` // first byte of the statement in the text
	End           int    `json:"-"` // byte behind its last
	Depth         int    `json:"-"` // depth of the tree, in JSON objects
	NormalizedSQL string `json:"-"` // the text with every literal replaced by a parameter, for logs

	Params int `json:"-"` // highest n of $n in the text

	// KeyParams are the parameters for which a value of Where is key_equality, as far
	// as their types let it: WithTypes says.
	KeyParams []KeyParam `json:"-"`

	// Attributes are the words behind a dot that may be a call of a function of the
	// database's, or a cast to a type of it, written like a column: WithCalls.
	Attributes []string `json:"-"`

	// Fields are those of them that stand behind brackets, (t.a).f: they may be a call with
	// a value of any type, where the others take a row.
	Fields []string `json:"-"`

	// Derived says that what stands in front of such a dot may be something else than a
	// table of the users' with its columns as they are: a word that is the name of a
	// column there may be a call all the same.
	Derived bool `json:"-"`

	// Beyond is the statement as it is judged where it calls more than its text tells of,
	// nil where that makes no other difference than the calls: WithCalls.
	Beyond *Classification `json:"-"`

	// UserTypes says that the text names a type that is not built in: parsing it
	// at the server runs that type's own code.
	UserTypes bool `json:"-"`

	// Plain is the statement as it is judged where none of Types, the types in it that are
	// not built in, runs any code of the users'; nil where that would make no other
	// difference, or is not for text and catalogue to tell: WithPlainTypes.
	Plain *Classification `json:"-"`
	Types []string        `json:"-"` // schema.name

	// Session is of a PREPARE, EXECUTE or DEALLOCATE, else nil. Its arguments
	// are constants of the text, for execution alone.
	Session *Session `json:"-"`

	// Control is of a statement about the transaction or the session, else nil.
	// Its arguments are constants of the text, for execution alone.
	Control *Control `json:"-"`
}

// A KeyParam is a parameter that a key is compared with.
type KeyParam struct {
	Number   int  `json:"number"`
	Cast     bool `json:"cast"`     // the text casts it to a type that binds a key
	Inferred bool `json:"inferred"` // without a type of its own it gets the key's, or that of the cast
}

// A Signal is one risk signal with its object and place.
type Signal struct {
	Signal   string `json:"signal"`
	Severity string `json:"severity"`
	Subject  string `json:"subject"` // pg_read_file, public.t; "" when the statement itself is the object
	At       int    `json:"at"`      // byte offset in the text
}

// Engine names what made the classification, so that it can be made again.
type Engine struct {
	PgQuery     string `json:"pg_query"`
	Grammar     int    `json:"grammar"`
	Tables      string `json:"tables"` // first 12 hex digits of the embedded tables' SHA-256
	ServerMajor int    `json:"server_major"`
	Catalog     string `json:"catalog"`
}

// Config is what a classification depends on besides the text, and how the
// parser is run.
type Config struct {
	SearchPath    string   // the one schema of GATE_SEARCH_PATH; "" = public
	KeyColumns    []string // GATE_KEY_COLUMNS, besides id
	ServerMajor   int      // 15 to 18; 0 = not known: only what all four versions have counts as built in
	MaxSQLBytes   int      // 0 = 262144
	ParserMode    string   // auto ("" too) or child
	Children      int      // parser children, 1 to 8; 0 = 1
	WorkerCommand []string // argv of the parser child; empty = this binary with parse-worker
	CacheEntries  int      // whole classifications kept by exact text, at most 4096; 0 = none

	RequestWall time.Duration // what one request may take of a child by the clock on the wall; 0 = twenty seconds

	// ClientOf is for whom a text is classified: clients wait for a parser by turns.
	// nil = all are one.
	ClientOf func(context.Context) string
}

// Classes, strictest first. Rank of class in this order decides which of two wins.
const (
	ClassUnknown     = "unknown"
	ClassProcedural  = "procedural"
	ClassDCL         = "dcl"
	ClassDDL         = "ddl"
	ClassMaintenance = "maintenance"
	ClassUtility     = "utility"
	ClassTCL         = "tcl"
	ClassSession     = "session"
	ClassWrite       = "write"
	ClassRead        = "read"
)

// Ways the executor runs a statement.
const (
	RunReadFence   = "read_fence"  // BEGIN READ ONLY ... ROLLBACK: exactly the safe reads
	RunTransaction = "transaction" // an explicit transaction of its own
	RunAlone       = "alone"       // the server refuses it inside a transaction block
	RunNone        = "none"        // POST /query cannot carry it
)

// Query types: the SQL verb of a node, in upper case.
const (
	TypeSelect            = "SELECT" // also VALUES and TABLE
	TypeShow              = "SHOW"
	TypeExplain           = "EXPLAIN"
	TypeCopyTo            = "COPY_TO"
	TypeInsert            = "INSERT"
	TypeUpdate            = "UPDATE"
	TypeDelete            = "DELETE"
	TypeMerge             = "MERGE"
	TypeCopyFrom          = "COPY_FROM"
	TypeRefresh           = "REFRESH"
	TypeCreate            = "CREATE"
	TypeCreateTableAs     = "CREATE_TABLE_AS" // also SELECT INTO
	TypeCreateFunction    = "CREATE_FUNCTION"
	TypeAlter             = "ALTER"
	TypeDrop              = "DROP"
	TypeTruncate          = "TRUNCATE"
	TypeComment           = "COMMENT"
	TypeGrant             = "GRANT"
	TypeRevoke            = "REVOKE"
	TypeCreateRole        = "CREATE_ROLE"
	TypeAlterRole         = "ALTER_ROLE"
	TypeDropRole          = "DROP_ROLE"
	TypeAlterDefaultPrivs = "ALTER_DEFAULT_PRIVILEGES"
	TypeReassignOwned     = "REASSIGN_OWNED"
	TypeSecurityLabel     = "SECURITY_LABEL"
	TypeAlterOwner        = "ALTER_OWNER"
	TypeBegin             = "BEGIN"
	TypeCommit            = "COMMIT"
	TypeRollback          = "ROLLBACK"
	TypeSavepoint         = "SAVEPOINT"
	TypeRelease           = "RELEASE"
	TypePrepareTx         = "PREPARE_TRANSACTION"
	TypeSet               = "SET"
	TypeReset             = "RESET"
	TypeDiscard           = "DISCARD"
	TypeListen            = "LISTEN"
	TypeUnlisten          = "UNLISTEN"
	TypeNotify            = "NOTIFY"
	TypePrepare           = "PREPARE"
	TypeExecute           = "EXECUTE"
	TypeDeallocate        = "DEALLOCATE"
	TypeDeclare           = "DECLARE"
	TypeFetch             = "FETCH"
	TypeClose             = "CLOSE"
	TypeDo                = "DO"
	TypeCall              = "CALL"
	TypeVacuum            = "VACUUM"
	TypeAnalyze           = "ANALYZE"
	TypeReindex           = "REINDEX"
	TypeCluster           = "CLUSTER"
	TypeCheckpoint        = "CHECKPOINT"
	TypeLock              = "LOCK"
	TypeLoad              = "LOAD"
	TypeAlterSystem       = "ALTER_SYSTEM"
	TypeUnknown           = "UNKNOWN"
)

// Risk signals (design/classification.md part 7). The first ten are the floor:
// each is a BLOCK unless a rule lifts it by name.
const (
	SignalUnknownNode          = "unknown_node"
	SignalServerFileAccess     = "server_file_access"
	SignalServerProgram        = "server_program"
	SignalSQLExecutingFunction = "sql_executing_function"
	SignalRemoteAccess         = "remote_access"
	SignalBackendControl       = "backend_control"
	SignalOpaqueCode           = "opaque_code"
	SignalIdentitySwitch       = "identity_switch"
	SignalSecretCatalogRead    = "secret_catalog_read"
	SignalOversizedFacts       = "oversized_facts"

	SignalDataModifyingCTE   = "data_modifying_cte"
	SignalSelectInto         = "select_into"
	SignalWriteWithoutWhere  = "write_without_where"
	SignalTautologicalWhere  = "tautological_where"
	SignalDestructiveDDL     = "destructive_ddl"
	SignalSystemCatalogWrite = "system_catalog_write"
	SignalPrivilegeChange    = "privilege_change"
	SignalUnknownFunction    = "unknown_function"
	SignalSessionChange      = "session_change"
	SignalTransactionControl = "transaction_control"
	SignalAdvisoryLock       = "advisory_lock"
	SignalRowLocking         = "row_locking"
	SignalExplainAnalyze     = "explain_analyze"
	SignalVolatileFunction   = "volatile_function"
	SignalSequenceChange     = "sequence_change"
	SignalDelayFunction      = "delay_function"
	SignalCascade            = "cascade"
	SignalBulkCopy           = "bulk_copy"
	SignalConfusableText     = "confusable_text"
)

// Severities of signals.
const (
	SeverityFloor  = "floor"
	SeverityHigh   = "high"
	SeverityMedium = "medium"
)

// Flags.
const (
	FlagReturning      = "returning"
	FlagCascade        = "cascade"
	FlagConcurrently   = "concurrently"
	FlagIfExists       = "if_exists" // also IF NOT EXISTS
	FlagOrReplace      = "or_replace"
	FlagTemporary      = "temporary"
	FlagOnConflict     = "on_conflict"
	FlagCTE            = "cte"
	FlagExplain        = "explain"
	FlagExplainAnalyze = "explain_analyze"
	FlagParameters     = "parameters"
	FlagPrepared       = "prepared" // set by the sessions that put an inner statement in EXECUTE's place
	FlagLimit          = "limit"
)

// Values of Where.
const (
	WhereNone        = "none"
	WhereTautology   = "tautology"
	WhereKeyEquality = "key_equality"
	WherePresent     = "present"
)

// Advice for the person who approves.
const (
	AdviceRewrite         = "rewrite"
	AdviceScan            = "scan"
	AdviceBlocksWrites    = "blocks_writes"    // nobody can write a table that it names
	AdviceBlocksAll       = "blocks_all"       // nor read it
	AdviceBlocksPartition = "blocks_partition" // of a partition alone
	AdviceBreaksClients   = "breaks_clients"
	AdviceNoTransaction   = "no_transaction"
)
