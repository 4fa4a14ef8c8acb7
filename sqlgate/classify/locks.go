package classify

import (
	"slices"
	"strings"
)

// What a statement locks while it runs, as the person who approves it has to know
// (https://www.postgresql.org/docs/current/explicit-locking.html, and the pages of the
// statements): ACCESS EXCLUSIVE keeps out readers and writers, what is stronger than
// SHARE UPDATE EXCLUSIVE keeps out writers, and the rest keeps out neither.
// TestAdviceSaysWhatTheServerLocks holds these tables against a server.

// statementLocks has the statements that keep anybody out of a table that was there before;
// those of ALTER TABLE are told by its commands.
var statementLocks = map[string]func(w *walk, i int32) string{
	"TruncateStmt": always(AdviceBlocksAll), "ClusterStmt": always(AdviceBlocksAll), "AlterTableMoveAllStmt": always(AdviceBlocksAll),
	"RuleStmt": always(AdviceBlocksAll), "CreatePolicyStmt": always(AdviceBlocksAll), "AlterPolicyStmt": always(AdviceBlocksAll),
	"DropdbStmt": always(AdviceBlocksAll), "DropOwnedStmt": always(AdviceBlocksAll), "ReassignOwnedStmt": always(AdviceBlocksAll),
	"CreateTrigStmt": always(AdviceBlocksWrites),
	"AlterSeqStmt":   always(AdviceBlocksWrites), // nextval waits
	"IndexStmt":      unlessConcurrent(AdviceBlocksWrites, ""),
	// A materialized view has no writer but REFRESH.
	"RefreshMatViewStmt": unlessConcurrent(AdviceBlocksAll, AdviceBlocksWrites),
	"CreateStmt": func(w *walk, i int32) string {
		if w.child(i, "partbound") >= 0 { // of the table that it is a partition of
			return AdviceBlocksAll
		}
		return ""
	},
	"ViewStmt": func(w *walk, i int32) string {
		if w.has(i, "replace") {
			return AdviceBlocksAll
		}
		return ""
	},
	"VacuumStmt": func(w *walk, i int32) string {
		if full := w.option(i, "options", "full"); full >= 0 && !w.isOff(full) {
			return AdviceBlocksAll
		}
		return ""
	},
	// It locks a table against writers alone, and its indexes, which every query asks for,
	// against all.
	"ReindexStmt": func(w *walk, i int32) string {
		if concurrently := w.option(i, "params", "concurrently"); concurrently >= 0 && !w.isOff(concurrently) {
			return ""
		}
		return AdviceBlocksAll
	},
	"DropStmt": func(w *walk, i int32) string {
		kind := string(w.raw(i, "removeType"))
		switch {
		case w.has(i, "concurrent"):
			return ""
		case kind == "OBJECT_EXTENSION", string(w.raw(i, "behavior")) == "DROP_CASCADE", slices.Contains(relationKinds, kind), slices.Contains(kindsOfRelations, kind):
			return AdviceBlocksAll
		}
		return ""
	},
	"RenameStmt": func(w *walk, i int32) string {
		kind := string(w.raw(i, "renameType"))
		if kind != "OBJECT_INDEX" && (slices.Contains(relationKinds, kind) || slices.Contains(kindsOfRelations, kind)) {
			return AdviceBlocksAll
		}
		return ""
	},
	"AlterObjectSchemaStmt": func(w *walk, i int32) string {
		if kind := string(w.raw(i, "objectType")); kind == "OBJECT_EXTENSION" || slices.Contains(relationKinds, kind) {
			return AdviceBlocksAll
		}
		return ""
	},
	"AlterObjectDependsStmt": func(w *walk, i int32) string {
		if slices.Contains(relationKinds, string(w.raw(i, "objectType"))) {
			return AdviceBlocksAll
		}
		return ""
	},
	// What its new rule is checked against: the tables that have columns of it.
	"AlterDomainStmt": func(w *walk, i int32) string {
		switch string(w.text(i, "subtype")) {
		case "O", "V":
			return AdviceBlocksWrites
		case "C":
			if !w.has(w.child(i, "def"), "skip_validation") {
				return AdviceBlocksWrites
			}
		}
		return ""
	},
	"LockStmt": func(w *walk, i int32) string {
		switch mode := number(w.raw(i, "mode")); {
		case mode >= 8:
			return AdviceBlocksAll
		case mode >= 5:
			return AdviceBlocksWrites
		}
		return ""
	},
}

// relationKinds are objects that are relations, and kindsOfRelations hang on one whose lock
// they take.
var (
	relationKinds    = []string{"OBJECT_TABLE", "OBJECT_VIEW", "OBJECT_MATVIEW", "OBJECT_SEQUENCE", "OBJECT_FOREIGN_TABLE", "OBJECT_INDEX"}
	kindsOfRelations = []string{"OBJECT_COLUMN", "OBJECT_ATTRIBUTE", "OBJECT_TABCONSTRAINT", "OBJECT_TRIGGER", "OBJECT_POLICY", "OBJECT_RULE"}
)

func always(advice string) func(*walk, int32) string {
	return func(*walk, int32) string { return advice }
}

func unlessConcurrent(advice, concurrent string) func(*walk, int32) string {
	return func(w *walk, i int32) string {
		if w.has(i, "concurrent") {
			return concurrent
		}
		return advice
	}
}

// lockOf tells of a command of ALTER TABLE whom it keeps out. Those that are not here take
// ACCESS EXCLUSIVE (https://www.postgresql.org/docs/current/sql-altertable.html).
func (w *walk) lockOf(i int32, subtype string) string {
	def := w.child(i, "def")
	switch subtype {
	case "SetStatistics", "SetOptions", "ResetOptions", "ClusterOn", "DropCluster", "ValidateConstraint":
		return ""
	case "AttachPartition", "DetachPartitionFinalize":
		return AdviceBlocksPartition
	case "DetachPartition":
		if w.has(def, "concurrent") {
			return AdviceBlocksPartition
		}
	case "AddConstraint":
		if string(w.raw(def, "contype")) == "CONSTR_FOREIGN" {
			return AdviceBlocksWrites
		}
	case "SetRelOptions", "ResetRelOptions", "ReplaceRelOptions":
		for o := range w.items(def, "items") {
			if !isTuning(string(w.text(o, "defname"))) {
				return AdviceBlocksAll
			}
		}
		return ""
	}
	if strings.HasPrefix(subtype, "EnableTrig") || strings.HasPrefix(subtype, "DisableTrig") || subtype == "EnableAlwaysTrig" || subtype == "EnableReplicaTrig" {
		return AdviceBlocksWrites
	}
	return AdviceBlocksAll
}

// isTuning tells the storage parameters that may change while a table is in use.
func isTuning(name string) bool {
	switch name {
	case "fillfactor", "toast_tuple_target", "parallel_workers", "log_autovacuum_min_duration", "vacuum_index_cleanup", "vacuum_truncate",
		"vacuum_max_eager_freeze_failure_rate", "deduplicate_items":
		return true
	}
	return strings.HasPrefix(name, "autovacuum_")
}
