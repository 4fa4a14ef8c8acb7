package pgexec

import (
	"context"
	"encoding/binary"
	"fmt"
	"strconv"
)

// A Column is one column of a result as answers show it.
type Column struct {
	Name     string // its key in rows: the label, made unique
	Label    string // the server's name
	Type     string // of pg_type, [] for arrays, qualified outside pg_catalog
	TypeOID  uint32
	Modifier int32
}

// Rows is the sink that turns a result into JSON as it comes: an array of one
// object per row, under a limit of bytes. It wants text format, and serves one
// statement.
type Rows struct {
	types *typeCache
	limit int64

	columns []Column
	infos   []*typeInfo
	keys    [][]byte // `{"a":`, `,"b":`, ...
	json    []byte
	count   int64

	// A type that is neither built in nor known keeps the rows as they came,
	// until the statement is done and the type can be looked up.
	missing []uint32
	raw     []byte
}

// NewRows makes a sink that takes at most limit bytes of JSON; 0 takes the
// configured limit of results.
func (db *DB) NewRows(limit int64) *Rows {
	if limit <= 0 || limit > db.cfg.MaxResultBytes {
		limit = db.cfg.MaxResultBytes
	}
	return &Rows{types: &db.types, limit: limit}
}

// Columns describes the result, in order; nil where the statement returns none.
func (r *Rows) Columns() []Column { return r.columns }

// Len is the number of rows taken.
func (r *Rows) Len() int64 { return r.count }

// JSON is the rows as a JSON array; it is valid after the statement succeeded.
func (r *Rows) JSON() []byte {
	if len(r.json) == 0 {
		return []byte("[]")
	}
	return append(r.json, ']')
}

// ColumnsJSON is the columns as a JSON array.
func (r *Rows) ColumnsJSON() []byte {
	dst := []byte{'['}
	for i, c := range r.columns {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = appendString(append(dst, `{"name":`...), c.Name)
		dst = appendString(append(dst, `,"label":`...), c.Label)
		dst = appendString(append(dst, `,"type":`...), c.Type)
		dst = strconv.AppendUint(append(dst, `,"type_oid":`...), uint64(c.TypeOID), 10)
		dst = strconv.AppendInt(append(dst, `,"modifier":`...), int64(c.Modifier), 10)
		dst = append(dst, '}')
	}
	return append(dst, ']')
}

// Fields takes the description of the result.
func (r *Rows) Fields(fields []Field) error {
	r.columns = make([]Column, len(fields))
	r.infos = make([]*typeInfo, len(fields))
	names := uniqueNames(fields)
	for i, f := range fields {
		if f.Format != 0 {
			return fmt.Errorf("%w: a column in binary format", errProtocol)
		}
		info, ok := r.types.find(f.TypeOID)
		if !ok {
			r.missing = append(r.missing, f.TypeOID)
			info = unknownType(f.TypeOID)
		}
		r.infos[i] = info
		r.columns[i] = Column{Name: names[i], Label: f.Label, Type: info.name, TypeOID: f.TypeOID, Modifier: f.Modifier}
		key := append([]byte(nil), ",{"[btoi(i == 0)])
		r.keys = append(r.keys, append(appendString(key, names[i]), ':'))
	}
	return nil
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// uniqueNames names doubled labels a, a_2, a_3 from left to right, and skips
// what is itself a label.
func uniqueNames(fields []Field) []string {
	labels := make(map[string]int, len(fields)) // label -> last number given
	for _, f := range fields {
		labels[f.Label] = 0
	}
	names := make([]string, len(fields))
	for i, f := range fields {
		n := labels[f.Label] + 1
		name := f.Label
		for ; n > 1; n++ {
			name = f.Label + "_" + strconv.Itoa(n)
			if _, taken := labels[name]; !taken {
				break
			}
		}
		labels[f.Label] = n
		names[i] = name
	}
	return names
}

// Row takes one row.
func (r *Rows) Row(values [][]byte) error {
	r.count++
	if len(r.missing) > 0 {
		return r.keep(values)
	}
	return r.render(values)
}

func (r *Rows) render(values [][]byte) error {
	sep := byte(',')
	if len(r.json) == 0 {
		sep = '['
	}
	r.json = append(r.json, sep)
	for i, v := range values {
		if int64(len(r.json))+escapes(v) > r.limit { // not found out by making it
			return errOverCap
		}
		r.json = append(r.json, r.keys[i]...)
		if v == nil {
			r.json = append(r.json, "null"...)
		} else {
			r.json = appendValue(r.json, r.infos[i], v)
		}
		if int64(len(r.json)) > r.limit {
			return errOverCap
		}
	}
	if len(values) == 0 {
		r.json = append(r.json, '{')
	}
	r.json = append(r.json, '}')
	if int64(len(r.json))+1 > r.limit {
		return errOverCap
	}
	return nil
}

// longValue is a value from which on its JSON may be much longer than it.
const longValue = 64 << 10

// escapes is how much longer than a long text its JSON is, at least: a control character
// that has no short form takes six bytes, whatever the type.
func escapes(text []byte) (more int64) {
	if len(text) < longValue {
		return 0
	}
	for _, c := range text {
		if c < ' ' && c != '\n' && c != '\r' && c != '\t' {
			more += 5
		}
	}
	return more
}

// keep stores a row as it came: a length, -1 for NULL, before each value.
func (r *Rows) keep(values [][]byte) error {
	for _, v := range values {
		if v == nil {
			r.raw = binary.BigEndian.AppendUint32(r.raw, ^uint32(0))
			continue
		}
		r.raw = binary.BigEndian.AppendUint32(r.raw, uint32(len(v)))
		r.raw = append(r.raw, v...)
	}
	if int64(len(r.raw)) > 2*r.limit { // the lengths count too; the values have their own cap
		return errOverCap
	}
	return nil
}

// A finisher is a sink that has work left when its statement is done.
type finisher interface {
	finish(ctx context.Context, db *DB) error
}

// finish looks the missing types up and renders what was kept for them. Types
// that cannot be had stay unknown: their values are strings.
func (r *Rows) finish(ctx context.Context, db *DB) error {
	if len(r.missing) == 0 {
		return nil
	}
	types, err := db.lookUp(ctx, r.missing)
	if err != nil {
		db.log.Warn("the types of a result could not be looked up; its values are given as text", "error", err)
	}
	r.missing = nil
	for i, c := range r.columns {
		if t, ok := types[c.TypeOID]; ok {
			r.infos[i], r.columns[i].Type = t, t.name
		}
	}
	raw := r.raw
	r.raw = nil
	values := make([][]byte, len(r.columns))
	for range r.count {
		raw = takeRow(values, raw)
		if err := r.render(values); err != nil {
			return err
		}
	}
	return nil
}

// takeRow reads one kept row and returns the rest.
func takeRow(values [][]byte, raw []byte) []byte {
	for i := range values {
		n := binary.BigEndian.Uint32(raw)
		raw = raw[4:]
		if n == ^uint32(0) {
			values[i] = nil
			continue
		}
		values[i], raw = raw[:n:n], raw[n:]
	}
	return raw
}

// finishSink ends the sink's work, before the transaction is committed.
func (db *DB) finishSink(ctx context.Context, sink Sink) error {
	if f, ok := sink.(finisher); ok {
		return f.finish(ctx, db)
	}
	return nil
}
