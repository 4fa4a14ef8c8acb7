package classify

import (
	"bytes"
	"strings"
)

// A statement is one row of part 5 of design/classification.md: what a node of
// this kind is wherever it stands, before its parts are looked at.
type statement struct {
	query   string
	class   string
	run     string
	signals []string
	more    func(w *walk, i int32, s *statement) // works on a copy
}

const (
	inTx  = RunTransaction
	alone = RunAlone
	never = RunNone
)

// statements holds the 112 kinds that can stand at the top.
var statements = map[string]statement{
	"SelectStmt":       {TypeSelect, ClassRead, inTx, nil, nil},
	"ExplainStmt":      {TypeExplain, ClassRead, inTx, nil, explain},
	"VariableShowStmt": {TypeShow, ClassRead, inTx, nil, show},
	"CopyStmt":         {TypeCopyTo, ClassRead, never, sig(SignalBulkCopy), copyTable},

	"InsertStmt":         {TypeInsert, ClassWrite, inTx, nil, insert},
	"UpdateStmt":         {TypeUpdate, ClassWrite, inTx, nil, update},
	"DeleteStmt":         {TypeDelete, ClassWrite, inTx, nil, remove},
	"MergeStmt":          {TypeMerge, ClassWrite, inTx, nil, merge},
	"RefreshMatViewStmt": {TypeRefresh, ClassWrite, inTx, nil, refresh},

	"CreateStmt":        {TypeCreate, ClassDDL, inTx, nil, nil},
	"CreateSeqStmt":     {TypeCreate, ClassDDL, inTx, nil, sequence},
	"ViewStmt":          {TypeCreate, ClassDDL, inTx, nil, view},
	"CreateStatsStmt":   {TypeCreate, ClassDDL, inTx, nil, nil},
	"CompositeTypeStmt": {TypeCreate, ClassDDL, inTx, nil, nil},
	"CreateEnumStmt":    {TypeCreate, ClassDDL, inTx, nil, nil},
	"CreateDomainStmt":  {TypeCreate, ClassDDL, inTx, nil, nil},
	"CreateSchemaStmt":  {TypeCreate, ClassDDL, inTx, nil, createSchema},
	"IndexStmt":         {TypeCreate, ClassDDL, inTx, nil, createIndex},
	"CreateTableAsStmt": {TypeCreateTableAs, ClassDDL, inTx, nil, nil},

	"CreateFunctionStmt":  {TypeCreateFunction, ClassDDL, inTx, sig(SignalOpaqueCode), createFunction},
	"CreateTrigStmt":      {TypeCreate, ClassDDL, inTx, sig(SignalOpaqueCode), bindsFunction},
	"CreateEventTrigStmt": {TypeCreate, ClassDDL, inTx, sig(SignalOpaqueCode), bindsFunction},
	"CreateCastStmt":      {TypeCreate, ClassDDL, inTx, sig(SignalOpaqueCode), nil},
	"CreateConversionStmt": {TypeCreate, ClassDDL, inTx, sig(SignalOpaqueCode), func(w *walk, i int32, _ *statement) {
		w.bound(i, "func_name", 6)
	}},
	"CreateTransformStmt": {TypeCreate, ClassDDL, inTx, sig(SignalOpaqueCode), nil},
	"CreateOpClassStmt":   {TypeCreate, ClassDDL, inTx, sig(SignalOpaqueCode), nil},
	"CreateOpFamilyStmt":  {TypeCreate, ClassDDL, inTx, sig(SignalOpaqueCode), nil},
	"CreateAmStmt": {TypeCreate, ClassDDL, inTx, sig(SignalOpaqueCode), func(w *walk, i int32, _ *statement) {
		w.bound(i, "handler_name", 1)
	}},
	"CreateRangeStmt":   {TypeCreate, ClassDDL, inTx, sig(SignalOpaqueCode), nil},
	"RuleStmt":          {TypeCreate, ClassDDL, inTx, sig(SignalOpaqueCode), nil},
	"AlterOperatorStmt": {TypeAlter, ClassDDL, inTx, sig(SignalOpaqueCode), nil},
	"AlterOpFamilyStmt": {TypeAlter, ClassDDL, inTx, sig(SignalOpaqueCode), nil},
	"DefineStmt":        {TypeCreate, ClassDDL, inTx, nil, define},
	"CreatePLangStmt":   {TypeCreate, ClassDDL, inTx, sig(SignalOpaqueCode, SignalServerProgram), nil},

	"CreateExtensionStmt":        {TypeCreate, ClassDDL, inTx, sig(SignalOpaqueCode), createExtension},
	"AlterExtensionStmt":         {TypeAlter, ClassDDL, inTx, sig(SignalOpaqueCode), nil},
	"AlterExtensionContentsStmt": {TypeAlter, ClassDDL, inTx, sig(SignalOpaqueCode), aboutObject},

	"CreatePolicyStmt":   {TypeCreate, ClassDDL, inTx, sig(SignalPrivilegeChange), nil},
	"AlterPolicyStmt":    {TypeAlter, ClassDDL, inTx, sig(SignalPrivilegeChange), nil},
	"AlterFunctionStmt":  {TypeAlter, ClassDDL, inTx, sig(SignalPrivilegeChange), nil},
	"AlterEventTrigStmt": {TypeAlter, ClassDDL, inTx, sig(SignalPrivilegeChange), nil},

	"CreateFdwStmt":           {TypeCreate, ClassDDL, inTx, sig(SignalRemoteAccess), nil},
	"AlterFdwStmt":            {TypeAlter, ClassDDL, inTx, sig(SignalRemoteAccess), nil},
	"CreateForeignServerStmt": {TypeCreate, ClassDDL, inTx, sig(SignalRemoteAccess), nil},
	"AlterForeignServerStmt":  {TypeAlter, ClassDDL, inTx, sig(SignalRemoteAccess), nil},
	"CreateForeignTableStmt":  {TypeCreate, ClassDDL, inTx, sig(SignalRemoteAccess), nil},
	"ImportForeignSchemaStmt": {TypeCreate, ClassDDL, inTx, sig(SignalRemoteAccess), importSchema},
	"CreatePublicationStmt":   {TypeCreate, ClassDDL, inTx, sig(SignalRemoteAccess), publication},
	"AlterPublicationStmt":    {TypeAlter, ClassDDL, inTx, sig(SignalRemoteAccess), publication},
	"CreateSubscriptionStmt":  {TypeCreate, ClassDDL, alone, sig(SignalRemoteAccess), nil},
	"AlterSubscriptionStmt":   {TypeAlter, ClassDDL, alone, sig(SignalRemoteAccess), nil},
	"DropSubscriptionStmt":    {TypeDrop, ClassDDL, alone, sig(SignalRemoteAccess, SignalDestructiveDDL), nil},
	"CreateUserMappingStmt":   {TypeCreate, ClassDDL, inTx, sig(SignalRemoteAccess, SignalPrivilegeChange), nil},
	"AlterUserMappingStmt":    {TypeAlter, ClassDDL, inTx, sig(SignalRemoteAccess, SignalPrivilegeChange), nil},
	"DropUserMappingStmt":     {TypeDrop, ClassDDL, inTx, sig(SignalRemoteAccess, SignalPrivilegeChange, SignalDestructiveDDL), nil},

	"CreatedbStmt":         {TypeCreate, ClassDDL, alone, nil, nil},
	"CreateTableSpaceStmt": {TypeCreate, ClassDDL, alone, sig(SignalServerFileAccess), nil},
	"AlterTableStmt":       {TypeAlter, ClassDDL, inTx, nil, alterTable},

	"AlterSeqStmt":                 {TypeAlter, ClassDDL, inTx, nil, sequence},
	"AlterStatsStmt":               {TypeAlter, ClassDDL, inTx, nil, nil},
	"AlterTableMoveAllStmt":        {TypeAlter, ClassDDL, inTx, nil, everyTable},
	"RenameStmt":                   {TypeAlter, ClassDDL, inTx, nil, rename},
	"AlterObjectSchemaStmt":        {TypeAlter, ClassDDL, inTx, nil, moveToSchema},
	"AlterObjectDependsStmt":       {TypeAlter, ClassDDL, inTx, nil, nil},
	"AlterTypeStmt":                {TypeAlter, ClassDDL, inTx, nil, alterType},
	"AlterEnumStmt":                {TypeAlter, ClassDDL, inTx, nil, alterType},
	"AlterDomainStmt":              {TypeAlter, ClassDDL, inTx, nil, alterType},
	"AlterCollationStmt":           {TypeAlter, ClassDDL, inTx, nil, nil},
	"AlterTSConfigurationStmt":     {TypeAlter, ClassDDL, inTx, nil, nil},
	"AlterTSDictionaryStmt":        {TypeAlter, ClassDDL, inTx, nil, nil},
	"AlterTableSpaceOptionsStmt":   {TypeAlter, ClassDDL, inTx, nil, nil},
	"AlterDatabaseRefreshCollStmt": {TypeAlter, ClassDDL, inTx, nil, nil},
	"AlterDatabaseStmt":            {TypeAlter, ClassDDL, inTx, nil, alterDatabase},
	"AlterDatabaseSetStmt":         {TypeAlter, ClassDDL, inTx, sig(SignalSessionChange), nil},

	"DropStmt":           {TypeDrop, ClassDDL, inTx, sig(SignalDestructiveDDL), drop},
	"DropdbStmt":         {TypeDrop, ClassDDL, alone, sig(SignalDestructiveDDL), everyTable},
	"DropTableSpaceStmt": {TypeDrop, ClassDDL, alone, sig(SignalDestructiveDDL), nil},
	"DropOwnedStmt":      {TypeDrop, ClassDDL, inTx, sig(SignalDestructiveDDL, SignalPrivilegeChange), everyTable},
	"TruncateStmt":       {TypeTruncate, ClassDDL, inTx, sig(SignalDestructiveDDL), nil},
	"CommentStmt":        {TypeComment, ClassDDL, inTx, nil, aboutObject},

	"GrantStmt":                  {TypeGrant, ClassDCL, inTx, sig(SignalPrivilegeChange), grant},
	"GrantRoleStmt":              {TypeGrant, ClassDCL, inTx, sig(SignalPrivilegeChange), grant},
	"AlterDefaultPrivilegesStmt": {TypeAlterDefaultPrivs, ClassDCL, inTx, sig(SignalPrivilegeChange), defaultPrivileges},
	"CreateRoleStmt":             {TypeCreateRole, ClassDCL, inTx, sig(SignalPrivilegeChange), nil},
	"AlterRoleStmt":              {TypeAlterRole, ClassDCL, inTx, sig(SignalPrivilegeChange), nil},
	"AlterRoleSetStmt":           {TypeAlterRole, ClassDCL, inTx, sig(SignalPrivilegeChange, SignalSessionChange), nil},
	"DropRoleStmt":               {TypeDropRole, ClassDCL, inTx, sig(SignalPrivilegeChange), nil},
	"ReassignOwnedStmt":          {TypeReassignOwned, ClassDCL, inTx, sig(SignalPrivilegeChange), everyTable},
	"AlterOwnerStmt":             {TypeAlterOwner, ClassDCL, inTx, sig(SignalPrivilegeChange), alterOwner},
	"SecLabelStmt":               {TypeSecurityLabel, ClassDCL, inTx, sig(SignalPrivilegeChange), aboutObject},

	"TransactionStmt": {TypeUnknown, ClassTCL, never, sig(SignalTransactionControl), transaction},

	"VariableSetStmt":    {TypeSet, ClassSession, never, nil, set},
	"ConstraintsSetStmt": {TypeSet, ClassSession, never, sig(SignalSessionChange, SignalTransactionControl), nil},
	"DiscardStmt":        {TypeDiscard, ClassSession, never, sig(SignalSessionChange), discard},
	"ListenStmt":         {TypeListen, ClassSession, never, sig(SignalSessionChange), nil},
	"UnlistenStmt":       {TypeUnlisten, ClassSession, never, sig(SignalSessionChange), nil},
	"NotifyStmt":         {TypeNotify, ClassSession, inTx, sig(SignalSessionChange), nil},
	"PrepareStmt":        {TypePrepare, ClassSession, never, sig(SignalSessionChange), nil},
	"DeallocateStmt":     {TypeDeallocate, ClassSession, never, sig(SignalSessionChange), nil},
	"DeclareCursorStmt":  {TypeDeclare, ClassSession, never, sig(SignalSessionChange), nil},
	"ClosePortalStmt":    {TypeClose, ClassSession, never, sig(SignalSessionChange), nil},
	"ExecuteStmt":        {TypeExecute, ClassSession, never, sig(SignalOpaqueCode), nil},
	"FetchStmt":          {TypeFetch, ClassSession, never, sig(SignalOpaqueCode), nil},

	"DoStmt":   {TypeDo, ClassProcedural, inTx, sig(SignalOpaqueCode), do},
	"CallStmt": {TypeCall, ClassProcedural, inTx, sig(SignalOpaqueCode), nil},

	"VacuumStmt":      {TypeVacuum, ClassMaintenance, alone, nil, vacuum},
	"ReindexStmt":     {TypeReindex, ClassMaintenance, inTx, nil, reindex},
	"ClusterStmt":     {TypeCluster, ClassMaintenance, inTx, nil, cluster},
	"CheckPointStmt":  {TypeCheckpoint, ClassMaintenance, inTx, sig(SignalBackendControl), nil},
	"LockStmt":        {TypeLock, ClassUtility, inTx, sig(SignalRowLocking), nil},
	"LoadStmt":        {TypeLoad, ClassUtility, inTx, sig(SignalServerProgram), nil},
	"AlterSystemStmt": {TypeAlterSystem, ClassUtility, alone, sig(SignalServerProgram), nil},
}

func sig(signals ...string) []string { return signals }

// onStatement judges a node that is a statement: at the top, or where another
// statement holds it. A SELECT counts as one only there; elsewhere it is an
// expression of its statement.
func onStatement(w *walk, i int32) {
	s := *w.t.schema.messages[w.e[i].msg].statement
	if !w.countsAsStatement(i) || w.settingOfOther(i) {
		return
	}
	if s.more != nil {
		s.more(w, i, &s)
	}
	if s.class != ClassRead && s.class != ClassWrite || s.query == TypeRefresh {
		if lock := statementLocks[w.t.schema.messages[w.e[i].msg].name]; lock != nil {
			if advice := lock(w, i); advice != "" {
				w.advice.addWord(advice)
			}
		}
	}
	for _, signal := range s.signals {
		w.raise(signal, "", i)
	}
	w.queries.addWord(s.query)
	w.class = stricter(w.class, s.class)
	if i == w.root {
		w.run, w.rootQuery = s.run, s.query
		if w.is(i, "SelectStmt") && w.limited(i) {
			w.flags.addWord(FlagLimit)
		}
	}
}

// countsAsStatement leaves out what is a part of another statement: the arms
// and subqueries of a SELECT, and the grants of default privileges.
func (w *walk) countsAsStatement(i int32) bool {
	switch {
	case w.is(i, "SelectStmt"):
		return w.t.schema.fields[w.e[w.listRoot(i)].field].act == actStatement
	case w.is(i, "GrantStmt"):
		return !w.is(w.e[i].parent, "AlterDefaultPrivilegesStmt")
	}
	return true
}

// listRoot climbs out of List nodes: a function's body is a list of lists.
func (w *walk) listRoot(i int32) int32 {
	for up := w.owner(i); w.is(up, "List"); up = w.owner(i) {
		i = up
	}
	return i
}

// limited reports whether a SELECT has a LIMIT that limits.
func (w *walk) limited(i int32) bool {
	count := w.child(i, "limitCount")
	return count >= 0 && !(w.is(count, "A_Const") && w.has(count, "isnull"))
}

// rootType is the type of the root, with SELECT INTO as the table it makes.
func (w *walk) rootType() string {
	if w.root < 0 || w.run == "" { // no entry for the root
		w.queries.addWord(TypeUnknown)
		w.class, w.run = ClassUnknown, RunNone
		if len(w.unknown) == 0 {
			w.raise(SignalUnknownNode, "", -1)
		}
		return TypeUnknown
	}
	if w.rootQuery == TypeSelect && w.into {
		return TypeCreateTableAs
	}
	return w.rootQuery
}

// onInto sees SELECT INTO; the INTO of CREATE TABLE AS is that statement's own.
func onInto(w *walk, i int32) {
	if !w.is(w.e[i].parent, "SelectStmt") {
		return
	}
	w.into = true
	w.queries.addWord(TypeCreateTableAs)
	w.class = stricter(w.class, ClassDDL)
	w.raise(SignalSelectInto, "", i)
}

func onLocking(w *walk, i int32) {
	w.class = stricter(w.class, ClassWrite)
	w.raise(SignalRowLocking, "", i)
}

func onParam(w *walk, i int32) {
	w.flags.addWord(FlagParameters)
	w.params = append(w.params, i)
}

func onCurrentOf(w *walk, i int32) { w.raise(SignalOpaqueCode, "", i) }

// onCTE sees a CTE that writes.
func onCTE(w *walk, i int32) {
	if query := w.child(i, "ctequery"); !w.is(query, "SelectStmt") {
		w.raise(SignalDataModifyingCTE, "", i)
	}
}

// explain judges EXPLAIN by what it holds, since planning runs functions.
func explain(w *walk, i int32, _ *statement) {
	w.flags.addWord(FlagExplain)
	if w.explainExecutes(i) {
		w.flags.addWord(FlagExplainAnalyze)
		w.raise(SignalExplainAnalyze, "", i)
	}
}

// explainExecutes reads the options. The server takes the last of two ANALYZE
// options, so one that is not literally off is enough.
func (w *walk) explainExecutes(i int32) bool {
	executes := false
	for o := range w.items(i, "options") {
		switch string(w.raw(o, "defname")) {
		case "analyze":
			executes = executes || !w.isOff(o)
		case "verbose", "costs", "settings", "generic_plan", "buffers", "wal", "timing", "summary", "memory", "serialize", "format":
		default:
			w.unknownOption(o)
		}
	}
	return executes
}

// unknownOption is an option that has no entry.
func (w *walk) unknownOption(o int32) {
	w.class = ClassUnknown
	w.raise(SignalUnknownNode, "option", o)
}

// isOff reports whether an option's value is literally off, false or 0.
func (w *walk) isOff(o int32) bool {
	arg := w.child(o, "arg")
	switch {
	case w.is(arg, "String"):
		v := strings.ToLower(string(w.text(arg, "sval")))
		return v == "off" || v == "false"
	case w.is(arg, "Integer"):
		return !w.has(arg, "ival") // the parser leaves out 0; below it the server refuses
	case w.is(arg, "Boolean"):
		return string(w.raw(arg, "boolval")) == "false" || !w.has(arg, "boolval")
	}
	return false
}

// option finds an option of a list by its name.
func (w *walk) option(node int32, list, name string) int32 {
	found := int32(-1)
	for o := range w.items(node, list) {
		if bytes.EqualFold(w.raw(o, "defname"), []byte(name)) {
			found = o
		}
	}
	return found
}

func insert(w *walk, i int32, _ *statement) {
	target := w.child(i, "relation")
	schema, name := w.relation(target)
	w.writes(schema, name, target)
	w.columnsOf(schema, name, i, "cols")
	conflict := w.child(i, "onConflictClause")
	if conflict < 0 {
		return
	}
	w.flags.addWord(FlagOnConflict)
	if string(w.raw(conflict, "action")) == "ONCONFLICT_UPDATE" {
		w.columnsOf(schema, name, conflict, "targetList")
		w.reads(schema, name, target)
		w.queries.addWord(TypeUpdate)
		w.dml = append(w.dml, i)
		w.extended = true
	}
}

// A statement that finds rows by a condition or gives them back reads its
// target too.
func update(w *walk, i int32, _ *statement) {
	schema, name := w.changes(i)
	w.columnsOf(schema, name, i, "targetList")
}

func remove(w *walk, i int32, _ *statement) {
	schema, name := w.changes(i)
	w.column(schema, name, nil)
}

func merge(w *walk, i int32, _ *statement) {
	schema, name := w.changes(i)
	acts := false
	for when := range w.items(i, "mergeWhenClauses") {
		switch string(w.raw(when, "commandType")) {
		case "CMD_NOTHING":
			continue
		case "CMD_INSERT":
			w.queries.addWord(TypeInsert)
			w.columnsOf(schema, name, when, "targetList")
		case "CMD_UPDATE":
			w.queries.addWord(TypeUpdate)
			w.columnsOf(schema, name, when, "targetList")
		default:
			w.queries.addWord(TypeDelete)
			w.column(schema, name, nil)
		}
		acts, w.extended = true, true
	}
	if !acts {
		w.column(schema, name, nil)
	}
}

// changes records the target of UPDATE, DELETE or MERGE and keeps the node for
// the judgement of its condition.
func (w *walk) changes(i int32) (schema, name []byte) {
	target := w.child(i, "relation")
	schema, name = w.relation(target)
	w.writes(schema, name, target)
	w.reads(schema, name, target)
	w.dml = append(w.dml, i)
	return schema, name
}
