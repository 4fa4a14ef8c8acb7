package classify

import (
	_ "embed" // the tables below
	"encoding/binary"
	"fmt"
	"strings"
)

// The schema says of every field of every node of the grammar what it holds and
// what the walk does with it. Its two files are generated from the parser's own
// descriptors and their last column is reviewed by people: an entry the tool has
// never seen comes out as "unknown", and a test fails while the descriptors have
// one that the files lack. Whatever has no entry here raises unknown_node.
var (
	//go:embed data/schema.tsv
	schemaTSV string
	//go:embed data/enums.tsv
	enumsTSV string
)

// An action is what the walk does with a field.
type action uint8

const (
	actUnknown   action = iota // only the server's analyser sets it, or nobody has looked at it
	actSkip                    // cosmetic numbers: type modifiers, column counts
	actRead                    // a scalar kept for handlers
	actLocation                // byte offset in the SQL text, kept on its node
	actWalk                    // nodes; a relation here is read
	actWalkNull                // the same, in a list that may hold NULL
	actStatement               // nodes; a SELECT here is a statement of its own
	actTarget                  // nodes; a relation here is written
	actHandled                 // nodes; the parent's handler says what a relation here is
	actAlias                   // nodes; a relation here is only a name of something else
)

var actionNames = map[string]action{
	"unknown": actUnknown, "skip": actSkip, "read": actRead, "location": actLocation, "walk": actWalk,
	"walk_null": actWalkNull, "statement": actStatement, "target": actTarget, "handled": actHandled, "alias": actAlias,
}

// A holding is the shape of a field's value in the JSON tree.
type holding uint8

const (
	holdsText    holding = iota // strings and single characters
	holdsBool                   // left out when false
	holdsNumber                 // left out when 0
	holdsEnum                   // the value's name
	holdsNode                   // {"SelectStmt":{...}}
	holdsMessage                // {...} of a fixed message
)

type field struct {
	name     string
	quoted   string // as it stands in the JSON, with its colon
	act      action
	holds    holding
	list     bool
	sub      uint16 // message or enum
	flag     string // raised where the field is there
	behavior bool   // may say CASCADE
	method   bool   // an access method
	other    bool   // a server that the statement may reach reads it otherwise
}

type message struct {
	name       string
	known      bool   // a node that the raw parser makes
	first, end uint16 // its fields, in the parser's order
	fields     keyTable
	handle     handler
	statement  *statement // nil for what is none
	other      []other    // what a server that the statement may reach reads otherwise
}

// schema is read-only once made.
type schema struct {
	fields   []field
	messages []message
	enums    []keyTable // the known values
	enumIDs  map[string]uint16
	nodes    keyTable // node name to message
	root     uint16   // ParseResult
	with     uint16   // WithClause
}

// newSchema reads the two tables. An error means that the embedded files are
// damaged, which only a build can cause.
func newSchema(fields, enums string) (*schema, error) {
	messages, enumIDs := map[string]uint16{}, map[string]uint16{}
	s := &schema{messages: []message{{}}, fields: []field{{}}, enumIDs: enumIDs}
	rows, err := tsv(fields, 4)
	if err != nil {
		return nil, err
	}
	for _, r := range rows {
		name := r[0]
		if name == "Node" { // also the only row of a message without fields
			name = r[2]
		}
		if _, ok := messages[name]; !ok {
			messages[name] = uint16(len(s.messages))
			s.messages = append(s.messages, message{name: name})
		}
	}
	if err := s.addEnums(enums, enumIDs); err != nil {
		return nil, err
	}
	keys := make([]map[string]uint16, len(s.messages))
	nodes := map[string]uint16{}
	for _, r := range rows {
		if r[0] == "Node" {
			nodes[r[1]] = messages[r[2]]
			s.messages[messages[r[2]]].known = r[3] != "unknown"
			continue
		}
		f, err := parseField(r, messages, enumIDs)
		if err != nil {
			return nil, err
		}
		m := messages[r[0]]
		if keys[m] == nil {
			keys[m] = map[string]uint16{}
		}
		keys[m][r[1]] = uint16(len(s.fields))
		if s.fields = append(s.fields, f); s.messages[m].first == 0 {
			s.messages[m].first = uint16(len(s.fields) - 1)
		}
		if s.messages[m].end = uint16(len(s.fields)); int(s.messages[m].end-s.messages[m].first) != len(keys[m]) {
			return nil, fmt.Errorf("schema: the rows of %s do not lie together", r[0])
		}
	}
	for i := range s.messages {
		m := &s.messages[i]
		m.fields, m.handle = newKeyTable(keys[i]), handlers[m.name]
		if row, ok := statements[m.name]; ok {
			m.statement = &row
		}
	}
	s.nodes = newKeyTable(nodes)
	s.root, s.with = messages["ParseResult"], messages["WithClause"]
	return s, nil
}

func (s *schema) addEnums(table string, ids map[string]uint16) error {
	rows, err := tsv(table, 3)
	if err != nil {
		return err
	}
	var values []map[string]uint16
	for _, r := range rows {
		id, ok := ids[r[0]]
		if !ok {
			id = uint16(len(values))
			ids[r[0]] = id
			values = append(values, map[string]uint16{})
		}
		if r[2] == "known" {
			values[id][r[1]] = 1
		}
	}
	for _, v := range values {
		s.enums = append(s.enums, newKeyTable(v))
	}
	return nil
}

func parseField(r []string, messages, enums map[string]uint16) (field, error) {
	act, ok := actionNames[r[3]]
	if !ok {
		return field{}, fmt.Errorf("schema: %s.%s: no action %q", r[0], r[1], r[3])
	}
	f := field{name: r[1], quoted: `"` + r[1] + `":`, act: act, flag: flagFields[r[1]], behavior: r[1] == "behavior", method: r[1] == "accessMethod" || r[1] == "access_method"}
	if r[0] == "AlterTSConfigurationStmt" && r[1] == "replace" { // a dictionary, not the configuration
		f.flag = ""
	}
	var holds string
	holds, f.list = strings.CutPrefix(r[2], "[]")
	switch name, isEnum := strings.CutPrefix(holds, "enum "); {
	case isEnum:
		f.holds = holdsEnum
		if f.sub, ok = enums[name]; !ok {
			return field{}, fmt.Errorf("schema: %s.%s: no enum %s", r[0], r[1], name)
		}
	case holds == "string":
		f.holds = holdsText
	case holds == "bool":
		f.holds = holdsBool
	case holds == "Node":
		f.holds = holdsNode
	case messages[holds] != 0:
		f.holds, f.sub = holdsMessage, messages[holds]
	default:
		f.holds = holdsNumber
	}
	return f, nil
}

// tsv splits an embedded table into rows of n columns; the first line is the head.
func tsv(table string, n int) ([][]string, error) {
	lines := strings.Split(strings.TrimSuffix(table, "\n"), "\n")
	rows := make([][]string, 0, len(lines))
	for i, line := range lines[1:] {
		r := strings.Split(line, "\t")
		if len(r) != n {
			return nil, fmt.Errorf("embedded table: line %d has %d columns, not %d", i+2, len(r), n)
		}
		rows = append(rows, r)
	}
	return rows, nil
}

// A keyTable finds a short key without allocating: open addressing at most half
// full, so nearly every look-up is one probe.
type keyTable struct {
	slots []keySlot
	mask  uint32
}

type keySlot struct {
	key   string
	value uint16
}

func newKeyTable(keys map[string]uint16) keyTable {
	size := 1
	for size < 2*len(keys)+1 {
		size *= 2
	}
	t := keyTable{slots: make([]keySlot, size), mask: uint32(size - 1)}
	for k, v := range keys {
		h := hashKey([]byte(k)) & t.mask
		for t.slots[h].key != "" {
			h = (h + 1) & t.mask
		}
		t.slots[h] = keySlot{k, v}
	}
	return t
}

// otherReading is the value of an enum's value that a server may read otherwise.
const otherReading = 2

// set changes the value of a key that is there.
func (t *keyTable) set(key string, value uint16) bool {
	for i := range t.slots {
		if t.slots[i].key == key {
			t.slots[i].value = value
			return key != ""
		}
	}
	return false
}

func (t *keyTable) find(key []byte) (uint16, bool) {
	for h := hashKey(key) & t.mask; ; h = (h + 1) & t.mask {
		s := &t.slots[h]
		if s.key == "" {
			return 0, false
		}
		if s.key == string(key) {
			return s.value, true
		}
	}
}

// hashKey mixes the first and last eight bytes and the length, which tell all
// names of the grammar apart well enough.
func hashKey(k []byte) uint32 {
	var a, b uint64
	if n := len(k); n >= 8 {
		a, b = binary.LittleEndian.Uint64(k), binary.LittleEndian.Uint64(k[n-8:])
	} else {
		for _, c := range k {
			a = a<<8 | uint64(c)
		}
	}
	h := (a ^ b*0x9E3779B97F4A7C15 ^ uint64(len(k))) * 0xD6E8FEB86659FD93
	return uint32(h >> 32)
}
