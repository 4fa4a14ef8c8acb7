package sqlgate

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"writegate/commands/fault"
	"writegate/eventlog/event"
	"writegate/sqlgate/classify"
	"writegate/sqlgate/pgexec"
)

// A wireStatement is a statement that Parse or PREPARE left behind, or that of a
// Query. It never changes, but for what a Describe found out.
type wireStatement struct {
	name           string
	sql            string // without the comment that names an approval
	approval       string // that the comment names; "" = none
	types          []uint32
	typeNames      pgexec.Types            // of those that are not built in, behind a Describe also of what it told
	classification classify.Classification // with the types
	empty          bool                    // there is no statement in it
	reading        time.Duration           // what guard, parser and classifier took, until a first execution has counted it
	bytes          int64                   // that it takes in memory

	described  bool
	parameters []uint32
	columns    []pgexec.Field // nil: it returns none
	evidence   *describedUnder
}

// params is the number of parameters that a Bind has to bring.
func (st *wireStatement) params() int { return max(len(st.types), st.classification.Params) }

// checkTypes refuses more types than a text can need. Their names are kept, and asked
// for at the database.
func (st *wireStatement) checkTypes() error {
	var named []uint32
	for _, t := range st.types {
		if !pgexec.PlainType(t) {
			named = append(named, t)
		}
	}
	slices.Sort(named)
	got, most := len(st.types), max(preparedParams, st.classification.Params)
	if n := len(slices.Compact(named)); n > preparedParams {
		got, most = n, preparedParams
	}
	if got <= most {
		return nil
	}
	return fault.New(fault.SessionLimitExceeded, "The message names %d types of parameters; it may name %d.", got, most).
		With("limit", "parameter_types").With("got", got).With("max", most)
}

// A wirePortal is a statement with its parameters. Where Execute has a row limit
// it holds the result until it has been fetched.
type wirePortal struct {
	statement     *wireStatement
	params        [][]byte
	paramFormats  []int16
	resultFormats []int16

	bytes  int64     // that the parameters and formats take in memory
	number int       // of the connection's portals, in their order
	done   *WireDone // it ran
	rows   *wireRows // of it, where they were kept
}

// approvalComment is the one form in which a comment names an approval, at the
// first byte of the text.
const (
	approvalComment    = "/* gate.approval_id="
	approvalCommentEnd = " */"
)

// cutApproval takes the comment that names an approval off a text, and one space
// behind it. Any other comment stays what it is.
func cutApproval(sql string) (approval, rest string) {
	rest, found := strings.CutPrefix(sql, approvalComment)
	if !found {
		return "", sql
	}
	id, rest, found := strings.Cut(rest, approvalCommentEnd)
	if !found || !approvalID(id) {
		return "", sql
	}
	return id, strings.TrimPrefix(rest, " ")
}

// approvalID reports whether a text has the form of an approval's id.
func approvalID(id string) bool { return idOf("apr_", id) }

// AgentID reports whether a text has the form of an agent's id.
func AgentID(id string) bool { return idOf("agt_", id) }

func idOf(prefix, id string) bool {
	uuid, found := strings.CutPrefix(id, prefix)
	return found && len(uuid) == 36 && strings.Trim(uuid, "0123456789abcdef-") == ""
}

// read guards, parses and classifies a text. A refusal is in the log.
func (w *Wire) read(ctx context.Context, sql string, types []uint32) (*wireStatement, error) {
	g := w.gate
	st := &wireStatement{types: types}
	st.approval, st.sql = cutApproval(sql)
	s, err := w.submission(ctx, st, &wireCall{wire: w})
	if err != nil {
		return nil, err
	}
	if len(st.sql) > g.MaxSQLBytes {
		return nil, g.refuse(ctx, s, OversizedSQL(len(st.sql), g.MaxSQLBytes))
	}
	begin := time.Now()
	st.classification, err = g.Classifier.Classify(ctx, st.sql)
	st.reading = time.Since(begin)
	if fault.CodeOf(err) == fault.EmptySQL {
		st.empty = true
		return st, nil
	}
	if err != nil {
		return nil, placed(g.refuse(ctx, s, err), sql, len(sql)-len(st.sql))
	}
	if err := st.checkTypes(); err != nil {
		return nil, g.refuse(ctx, s, err)
	}
	if st.typeNames, err = g.Database.TypeNames(ctx, types); err != nil {
		return nil, g.refuse(ctx, s, err)
	}
	st.classification = st.classification.WithTypes(types, namesOf(st.typeNames))
	return st, nil
}

// snapshotTypes are the statements for which a server takes a snapshot at Parse and
// at Bind already.
var snapshotTypes = []string{
	classify.TypeSelect, classify.TypeInsert, classify.TypeUpdate, classify.TypeDelete, classify.TypeMerge, classify.TypeExplain, classify.TypeCreateTableAs,
}

// analysed notes that a statement was parsed or bound.
func (w *Wire) analysed(st *wireStatement) {
	if slices.Contains(snapshotTypes, st.classification.QueryType) {
		w.unit.snapshot = true
	}
}

// weigh notes how many bytes a statement takes, after what it holds has changed.
func (st *wireStatement) weigh() {
	own := *st
	own.evidence = nil // it leads to the policy, which all share
	st.bytes = inMemory(own)
}

func namesOf(types pgexec.Types) (list []string) {
	for _, t := range types.Names {
		list = append(list, t.Name)
	}
	return list
}

// placed adds where in the client's text the parser stopped, in characters and
// from 1, as PostgreSQL counts; skipped are the bytes in front of what it read.
func placed(err error, sql string, skipped int) error {
	f := fault.Of(err)
	at, ok := f.Details["position"].(int)
	if f.Code != fault.ParserError || !ok || at < 0 || skipped+at > len(sql) {
		return err
	}
	return f.With("character", utf8.RuneCountInString(sql[:skipped+at])+1)
}

// submission puts a statement at the beginning of the journey. The error is that of an agent
// whose token is not good any more; it is in the log.
func (w *Wire) submission(ctx context.Context, st *wireStatement, c *wireCall) (*submission, error) {
	g, now := w.gate, w.gate.Now()
	s := &submission{
		Request: &Request{
			RequestID: event.NewRequestID(now), Claims: w.login.Claims, SQL: st.sql, ApprovalID: st.approval, Reason: w.show(settingReason),
			TLSSubject: w.login.TLSSubject, WireUser: w.login.User, Agent: w.login.Agent, WireSession: w.login.ConnectionID, ReceivedAt: now,
		},
		classification: st.classification, mode: g.ModeNow(), markerTable: g.MarkerTable, policy: g.running.Load(),
		watch: stopwatch{begin: now.Add(-st.reading)}, wire: c,
	}
	s.watch.spent[phaseClassify] = st.reading
	c.types, c.names = st.types, st.typeNames
	if err := g.findAgent(ctx, s); err != nil {
		s.record = g.recordOf(s.Request)
		return nil, g.refuse(ctx, s, err)
	}
	s.classification = g.withDatabase(ctx, s, s.classification, st.sql)
	s.record = g.recordOf(s.Request)
	s.record.SQLText = g.sqlText(s)
	if zone := w.zone(); zone != "" { // what the text's times mean
		s.record.RequestDigest = digestOf("gate.request.zone.v1", string(s.record.RequestDigest[:]), zone)
	}
	if set := w.unit.setters.digest; set != [32]byte{} { // the rows that policies let it see, say
		s.record.RequestDigest = digestOf("gate.request.block.v1", string(s.record.RequestDigest[:]), string(set[:]))
	}
	if c.portal != nil && (st.params() > 0 || len(c.portal.params) > 0) {
		s.record.RequestDigest = s.wireDigest()
	}
	return s, nil
}

// wireDigest binds an approval to the parameters besides the text: their types
// as Parse said them or as they were described, their formats and their bytes.
func (s *submission) wireDigest() [32]byte {
	var st pgexec.Statement
	s.wire.bind(&st)
	values := pgexec.ParamsDigest(&st)
	types := make([]byte, 0, 4*len(st.ParamOIDs))
	for _, t := range st.ParamOIDs {
		types = binary.BigEndian.AppendUint32(types, t)
	}
	all := sha256.Sum256(types)
	return digestOf("gate.request.wire.v1", string(s.record.RequestDigest[:]), string(all[:]), string(values[:]))
}

// bind puts the parameters, each with its format, beside a statement's text.
func (c *wireCall) bind(st *pgexec.Statement) {
	if c.portal == nil {
		return
	}
	p := c.portal
	st.ResultFormats = p.resultFormats
	st.ParamOIDs, st.Params = c.types, p.params
	st.ParamFormats = make([]int16, len(p.params))
	// The type of a value in its binary form is what its client was told, and what an
	// approver was shown, whatever the server would find now.
	types := make([]uint32, max(len(c.types), len(p.params)))
	copy(types, c.types)
	for i := range st.ParamFormats {
		st.ParamFormats[i] = formatAt(p.paramFormats, i)
		if t := p.statement.typeOf(i, st.ParamFormats[i]); types[i] == 0 && t != 0 {
			types[i], st.ParamOIDs = t, types
		}
	}
}

// settings are what a statement of the wire takes along.
func (s *submission) settings() pgexec.Settings {
	if s.wire == nil {
		return nil
	}
	return s.wire.wire.toDatabase()
}

// formatAt is the format of the i-th of several: none is all text, one is for all.
func formatAt(formats []int16, i int) int16 {
	switch len(formats) {
	case 0:
		return 0
	case 1:
		return formats[0]
	}
	return formats[i]
}

// Parse prepares a statement under a name; "" is the one that the next Parse
// and the next Query forget.
func (w *Wire) Parse(ctx context.Context, name, sql string, types []uint32) error {
	return w.extended(ctx, func(ctx context.Context) error {
		if name == "" {
			w.CloseStatement("")
		}
		st, err := w.read(ctx, sql, slices.Clone(types))
		if err != nil {
			return err
		}
		if w.unit.failed && !w.endsBlock(st) {
			return errFailedBlock()
		}
		w.analysed(st)
		st.weigh()
		if name != "" { // looked at last, as PostgreSQL does: what is wrong with the text is said first
			if err := w.room(name, st.bytes); err != nil {
				return err
			}
		}
		if err := w.hold(st.bytes); err != nil {
			return err
		}
		if !w.current.settles() {
			return errCancelled()
		}
		w.keep(name, st)
		return nil
	})
}

// room refuses a name that cannot be taken now.
func (w *Wire) room(name string, bytes int64) error {
	switch {
	case len(name) > wireNameBytes:
		return wireErrorf("42622", "the name of a prepared statement has at most %d bytes", wireNameBytes)
	case w.statements[name] != nil:
		return wireErrorf("42P05", "prepared statement \"%s\" already exists", name)
	case w.named() >= wireStatements:
		return statementsFull("statements", wireStatements+1, wireStatements)
	}
	if all := w.prepared() + bytes; all > wireStatementBytes {
		return statementsFull("session_bytes", all, wireStatementBytes)
	}
	return nil
}

func statementsFull(limit string, got, most int64) error {
	return fault.New(fault.SessionLimitExceeded, "The connection cannot take another prepared statement (%s). Close or DEALLOCATE what is no longer needed.", limit).
		With("limit", limit).With("got", got).With("max", most)
}

// prepared is how many bytes the statements take.
func (w *Wire) prepared() (bytes int64) {
	for _, st := range w.statements {
		bytes += st.bytes
	}
	return bytes
}

// named counts the statements with a name.
func (w *Wire) named() int {
	if w.statements[""] != nil {
		return len(w.statements) - 1
	}
	return len(w.statements)
}

func (w *Wire) keep(name string, st *wireStatement) {
	st.name = name
	w.statements[name] = st
}

// statement finds a prepared statement.
func (w *Wire) statement(name string) (*wireStatement, error) {
	st := w.statements[name]
	switch {
	case st == nil && name == "":
		return nil, wireErrorf("26000", "unnamed prepared statement does not exist")
	case st == nil:
		return nil, wireErrorf("26000", "prepared statement \"%s\" does not exist", name)
	}
	return st, nil
}

// CloseStatement forgets a statement, where there is one.
func (w *Wire) CloseStatement(name string) { delete(w.statements, name) }

// ClosePortal forgets a portal, where there is one.
func (w *Wire) ClosePortal(name string) { delete(w.portals, name) }

// Bind makes a portal of a statement and its parameters, whose bytes it keeps.
func (w *Wire) Bind(portal, statement string, paramFormats []int16, params [][]byte, resultFormats []int16) error {
	return w.extended(context.Background(), func(context.Context) error {
		st, err := w.statement(statement)
		if err != nil {
			return err
		}
		if err := w.bindable(portal, st, paramFormats, params, resultFormats); err != nil {
			return err
		}
		w.analysed(st)
		if err := w.hold(boundBytes(paramFormats, params, resultFormats)); err != nil {
			return err
		}
		p := &wirePortal{
			statement: st, paramFormats: slices.Clone(paramFormats), resultFormats: slices.Clone(resultFormats), params: make([][]byte, len(params)),
			bytes: boundBytes(paramFormats, params, resultFormats),
		}
		for i, v := range params {
			if v != nil {
				p.params[i] = append([]byte{}, v...)
			}
		}
		w.bound++
		p.number = w.bound
		w.portals[portal] = p
		return nil
	})
}

// bindable makes the checks that PostgreSQL makes of a Bind message, in its words.
func (w *Wire) bindable(portal string, st *wireStatement, paramFormats []int16, params [][]byte, resultFormats []int16) error {
	switch {
	case len(paramFormats) > 1 && len(paramFormats) != len(params):
		return wireErrorf("08P01", "bind message has %d parameter formats but %d parameters", len(paramFormats), len(params))
	case len(params) != st.params():
		return wireErrorf("08P01", "bind message supplies %d parameters, but prepared statement \"%s\" requires %d", len(params), st.name, st.params())
	case w.unit.failed && !w.endsBlock(st):
		return errFailedBlock()
	case len(portal) > wireNameBytes:
		return wireErrorf("42622", "the name of a portal has at most %d bytes", wireNameBytes)
	case portal != "" && w.portals[portal] != nil:
		return wireErrorf("42P03", "cursor \"%s\" already exists", portal)
	case w.portals[portal] == nil && len(w.portals) >= wirePortals:
		return fault.New(fault.SessionLimitExceeded, "The connection has %d portals, as many as there may be. Close those that are no longer needed.", wirePortals).With("limit", "portals").With("max", wirePortals)
	}
	if held := w.held(w.portals[portal]); held > 0 && held+boundBytes(paramFormats, params, resultFormats) > w.gate.ResultBytes {
		return portalsFull()
	}
	for _, f := range slices.Concat(paramFormats, resultFormats) {
		if f != 0 && f != 1 {
			return wireErrorf("22023", "unsupported format code: %d", f)
		}
	}
	return nil
}

// boundBytes is how many bytes a portal's parameters and formats take.
func boundBytes(paramFormats []int16, params [][]byte, resultFormats []int16) int64 {
	return inMemory(paramFormats) + inMemory(params) + inMemory(resultFormats)
}

// held is how many bytes the portals hold but for one: their parameters, rows that
// were not fetched yet, and statements that have no name any more.
func (w *Wire) held(but *wirePortal) (bytes int64) {
	var nameless map[*wireStatement]bool
	for _, p := range w.portals {
		if p == but {
			continue
		}
		bytes += p.bytes
		if p.rows != nil {
			bytes += p.rows.held()
		}
		if p.done != nil {
			bytes += inMemory(p.done.Notices)
		}
		if st := p.statement; w.statements[st.name] != st && !nameless[st] {
			if nameless == nil {
				nameless = map[*wireStatement]bool{}
			}
			nameless[st] = true
			bytes += st.bytes
		}
	}
	return bytes
}

// portalsFull is the fault of a connection whose portals hold as much as one
// result may have.
func portalsFull() error {
	return fault.New(fault.ResultTooLarge, "The open portals of the connection hold as many bytes as a result may have. Fetch their rows to the end, or close them.")
}

// extended is a message of the extended protocol: after its error nothing is
// taken until Sync.
func (w *Wire) extended(ctx context.Context, message func(ctx context.Context) error) error {
	ctx, over := w.current.begin(ctx)
	defer over()
	err := error(errSkipping())
	if !w.skipping {
		err = message(ctx)
	}
	if err == nil && !w.current.settles() {
		err = errCancelled()
	}
	if err == nil {
		return nil
	}
	w.skipping = true
	return w.failed(ctx, w.cancelledInstead(err))
}
