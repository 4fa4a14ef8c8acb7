package event

import "strings"

// A Decoder decodes many records, one after the other, with the checks of Decode
// and far less memory: who replays a log would otherwise spend more on finding
// and freeing memory than on reading.
//
// What it gives comes in two kinds of memory. Texts are never written again, and
// may be kept for good, though a kept one keeps some 32 KiB of its neighbours.
// Payloads, nested ones too, are cut from memory that is used again: they hold
// until Reset.
//
// The zero Decoder is ready. One goroutine owns it, and it is not copied.
type Decoder struct {
	texts strings.Builder
	slabs []Payload // each of slabFields
	slab  int       // the one that is cut from
	used  int       // of its fields
	ids   [idsKept]knownID
	last  [contextFields + 1]string // texts of the context, by number: most come again in the next record
}

const (
	// textsSize is how much text shares one allocation. A record of more than a
	// quarter gets its own.
	textsSize = 32 << 10
	// slabFields is how many fields are allocated at once, and slabsKept how many
	// slabs outlast a Reset: some 300 KB, what a hundred large events take.
	slabFields = 512
	slabsKept  = 8
	// idsKept is a power of two.
	idsKept = 64
)

// A knownID is the text of an id that was seen not long ago: the events of one
// statement carry the same ones.
type knownID struct {
	id    ID
	field int // of the context: it tells the prefix
	text  string
}

// Decode reads a record as the function Decode does, into d; it leaves d zero on
// an error. It takes all it needs of record.
func (m *Decoder) Decode(record []byte, d *Draft) error {
	r := reader{record: m.keep(record), memory: m}
	*d = Draft{}
	r.draft(d)
	err := r.end()
	if err != nil {
		*d = Draft{}
	}
	return err
}

// Reset takes the memory of all payloads back: none of them may be used any more.
func (m *Decoder) Reset() {
	if len(m.slabs) > slabsKept {
		clear(m.slabs[slabsKept:])
		m.slabs = m.slabs[:slabsKept]
	}
	m.slab, m.used = 0, 0
	m.ids, m.last = [idsKept]knownID{}, [contextFields + 1]string{} // each text would keep what lies around it
}

// keep gives the text of a record. A strings.Builder only ever appends to its
// memory, so what it gave before stays as it was; a new one is begun before it
// would grow, because growing copies.
func (m *Decoder) keep(record []byte) string {
	if len(record) > textsSize/4 {
		return string(record)
	}
	m.reserve(len(record))
	at := m.texts.Len()
	m.texts.Write(record) // never an error
	return m.texts.String()[at:]
}

func (m *Decoder) reserve(n int) {
	if m.texts.Cap()-m.texts.Len() < n {
		m.texts.Reset() // lets go of the memory, and does not touch it
		m.texts.Grow(textsSize)
	}
}

// idText is the text of an id in this field of the context.
func (m *Decoder) idText(field int, id ID) string {
	known := &m.ids[(id[len(id)-1]^byte(field))%idsKept]
	if known.field == field && known.id == id {
		return known.text
	}
	var b [prefixLen + uuidLen]byte
	copy(b[:], contextPrefixes[field])
	writeUUID(b[prefixLen:], id)
	*known = knownID{id, field, m.keep(b[:])}
	return known.text
}

// room cuts an empty list for n fields, at most slabFields. One that gets more is
// moved elsewhere by append, as it can't reach what follows.
func (m *Decoder) room(n int) Payload {
	if m.slab < len(m.slabs) && m.used+n > slabFields {
		m.slab, m.used = m.slab+1, 0
	}
	if m.slab == len(m.slabs) {
		m.slabs = append(m.slabs, make(Payload, slabFields))
	}
	at := m.used
	m.used += n
	return m.slabs[m.slab][at:at:m.used]
}
