package classify

import "strings"

// A Control is what a statement says about the transaction or the session: for a
// caller that keeps both itself, as the wire listener does
// (design/execution-and-wire.md part 9). It is read from the tree where the root
// is one of these statements. Like a Session it may hold constants of the text,
// which go into no log and no answer.
type Control struct {
	Kind string `json:"kind"`
	Tag  string `json:"tag"` // PostgreSQL's command tag when it succeeds; "" for SHOW, which returns rows

	// Name is the savepoint, the setting in small letters, the channel, the cursor,
	// or what is discarded (all, plans, sequences, temp). "" for CLOSE ALL and
	// UNLISTEN *, and where there is none.
	Name  string     `json:"name,omitempty"`
	Chain bool       `json:"chain,omitempty"` // COMMIT and ROLLBACK: AND CHAIN
	Modes Modes      `json:"modes"`           // BEGIN, SET TRANSACTION, SET SESSION CHARACTERISTICS
	Local bool       `json:"local,omitempty"` // SET LOCAL
	Args  []Argument `json:"args,omitempty"`  // SET: its values
}

// Modes are those of a transaction. Where one is said twice the last counts, as
// in PostgreSQL.
type Modes struct {
	Isolation  string `json:"isolation,omitempty"`  // read uncommitted, read committed, repeatable read, serializable; "" = not said
	ReadOnly   *bool  `json:"read_only,omitempty"`  // nil = not said
	Deferrable *bool  `json:"deferrable,omitempty"` // nil = not said
}

// Kinds of a Control.
const (
	ControlBegin            = "begin" // also START TRANSACTION
	ControlCommit           = "commit"
	ControlRollback         = "rollback"
	ControlSavepoint        = "savepoint"
	ControlRelease          = "release"
	ControlRollbackTo       = "rollback_to"
	ControlPrepare          = "prepare_transaction"
	ControlCommitPrepared   = "commit_prepared"
	ControlRollbackPrepared = "rollback_prepared"
	ControlSet              = "set"
	ControlSetDefault       = "set_default" // SET x TO DEFAULT
	ControlSetCurrent       = "set_current" // SET x FROM CURRENT
	ControlReset            = "reset"
	ControlResetAll         = "reset_all"
	ControlSetTransaction   = "set_transaction"
	ControlSetSnapshot      = "set_transaction_snapshot"
	ControlCharacteristics  = "set_session_characteristics"
	ControlSetConstraints   = "set_constraints"
	ControlShow             = "show"
	ControlDiscard          = "discard"
	ControlClose            = "close"
	ControlUnlisten         = "unlisten"
)

// transactionControls are the kinds of a TransactionStmt.
var transactionControls = map[string]Control{
	"TRANS_STMT_BEGIN":             {Kind: ControlBegin, Tag: "BEGIN"},
	"TRANS_STMT_START":             {Kind: ControlBegin, Tag: "START TRANSACTION"},
	"TRANS_STMT_COMMIT":            {Kind: ControlCommit, Tag: "COMMIT"},
	"TRANS_STMT_ROLLBACK":          {Kind: ControlRollback, Tag: "ROLLBACK"},
	"TRANS_STMT_SAVEPOINT":         {Kind: ControlSavepoint, Tag: "SAVEPOINT"},
	"TRANS_STMT_RELEASE":           {Kind: ControlRelease, Tag: "RELEASE"},
	"TRANS_STMT_ROLLBACK_TO":       {Kind: ControlRollbackTo, Tag: "ROLLBACK"},
	"TRANS_STMT_PREPARE":           {Kind: ControlPrepare, Tag: "PREPARE TRANSACTION"},
	"TRANS_STMT_COMMIT_PREPARED":   {Kind: ControlCommitPrepared, Tag: "COMMIT PREPARED"},
	"TRANS_STMT_ROLLBACK_PREPARED": {Kind: ControlRollbackPrepared, Tag: "ROLLBACK PREPARED"},
}

// settingControls are the kinds of a VariableSetStmt about one setting, or all.
var settingControls = map[string]Control{
	"VAR_SET_VALUE":   {Kind: ControlSet, Tag: "SET"},
	"VAR_SET_DEFAULT": {Kind: ControlSetDefault, Tag: "SET"},
	"VAR_SET_CURRENT": {Kind: ControlSetCurrent, Tag: "SET"},
	"VAR_RESET":       {Kind: ControlReset, Tag: "RESET"},
	"VAR_RESET_ALL":   {Kind: ControlResetAll, Tag: "RESET"},
}

// multiControls are the kinds of a VariableSetStmt with a name of its own.
var multiControls = map[string]Control{
	"TRANSACTION":             {Kind: ControlSetTransaction, Tag: "SET"},
	"TRANSACTION SNAPSHOT":    {Kind: ControlSetSnapshot, Tag: "SET"},
	"SESSION CHARACTERISTICS": {Kind: ControlCharacteristics, Tag: "SET"},
}

// control reads the root, where it is one of these statements; nil also for a
// form of one that is not known here.
func (w *walk) control() *Control {
	var c Control
	switch root := w.root; {
	case w.is(root, "TransactionStmt"):
		c = transactionControls[string(w.raw(root, "kind"))]
		c.Name, c.Chain, c.Modes = string(w.text(root, "savepoint_name")), w.has(root, "chain"), w.modes("options")
	case w.is(root, "VariableSetStmt"):
		c = w.setting()
	case w.is(root, "ConstraintsSetStmt"):
		c = Control{Kind: ControlSetConstraints, Tag: "SET CONSTRAINTS"}
	case w.is(root, "VariableShowStmt"):
		c = Control{Kind: ControlShow, Name: strings.ToLower(string(w.text(root, "name")))}
	case w.is(root, "DiscardStmt"):
		what := strings.TrimPrefix(string(w.raw(root, "target")), "DISCARD_")
		c = Control{Kind: ControlDiscard, Tag: "DISCARD " + what, Name: strings.ToLower(what)}
	case w.is(root, "ClosePortalStmt"):
		c = Control{Kind: ControlClose, Tag: "CLOSE CURSOR", Name: string(w.text(root, "portalname"))}
		if c.Name == "" {
			c.Tag = "CLOSE CURSOR ALL"
		}
	case w.is(root, "UnlistenStmt"):
		c = Control{Kind: ControlUnlisten, Tag: "UNLISTEN", Name: string(w.text(root, "conditionname"))}
	}
	if c.Kind == "" {
		return nil
	}
	return &c
}

// setting reads SET and RESET.
func (w *walk) setting() Control {
	kind, name := string(w.raw(w.root, "kind")), string(w.text(w.root, "name"))
	if kind == "VAR_SET_MULTI" {
		c := multiControls[name]
		c.Modes, c.Local = w.modes("args"), w.has(w.root, "is_local")
		return c
	}
	c := settingControls[kind]
	c.Name, c.Local = strings.ToLower(name), w.has(w.root, "is_local")
	if c.Kind == ControlSet {
		for a := range w.items(w.root, "args") {
			c.Args = append(c.Args, w.argument(a))
		}
	}
	return c
}

// modes reads a list of transaction modes.
func (w *walk) modes(list string) (m Modes) {
	for o := range w.items(w.root, list) {
		value := w.child(o, "arg")
		on := w.has(w.child(value, "ival"), "ival") // 0 is not in the tree
		switch string(w.raw(o, "defname")) {
		case "transaction_isolation":
			m.Isolation = string(w.text(w.child(value, "sval"), "sval"))
		case "transaction_read_only":
			m.ReadOnly = &on
		case "transaction_deferrable":
			m.Deferrable = &on
		}
	}
	return m
}
