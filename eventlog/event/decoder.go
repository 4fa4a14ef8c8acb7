package event

import "strings"

// A Decoder decodes many records, one after the other, with the checks of Decode
// and far less work: who replays a log would otherwise spend more on finding and
// freeing memory than on reading, and few payloads are looked at whole. So it
// judges a payload as Decode does, but leaves it as the bytes that it is, for the
// methods of its Draft to read.
//
// What it gives is never written again, and may be kept for good, though each kept
// text of a context keeps some 32 KiB of its neighbours, and one of a payload its record.
//
// The zero Decoder is ready. One goroutine owns it, and it is not copied.
type Decoder struct {
	texts   strings.Builder
	ids     [idsKept]knownID
	last    [contextFields + 1]string // texts of the context, by number: most come again in the next record
	context knownContext
}

const (
	// textsSize is how much text shares one allocation. A record of more than a
	// quarter gets its own.
	textsSize = 32 << 10
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
	d.packed = r.skimmed()
	err := r.end()
	if err != nil {
		*d = Draft{}
		return err
	}
	if len(record) > textsSize/4 { // whoever keeps a text of the context would keep all of it
		m.last, m.context = [contextFields + 1]string{}, knownContext{}
		d.Type = Type(m.keep([]byte(d.Type)))
		for field := 1; field <= contextFields; field++ {
			if text := d.Context.at(field); *text != "" {
				*text = m.keep([]byte(*text))
			}
		}
	}
	return nil
}

// Reset lets go of the texts of earlier records, each of which would keep what lies
// around it. Who is done with a run of them calls it.
func (m *Decoder) Reset() {
	m.ids, m.last, m.context = [idsKept]knownID{}, [contextFields + 1]string{}, knownContext{}
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
