package projections

import "writegate/eventlog/event"

// A CatalogSnapshot is a snapshot of the database's catalogues that the log at hand keeps whole.
// One that an earlier log kept is none: each log has what its own decisions were made by.
type CatalogSnapshot struct {
	Seq   uint64 // position of its last part
	Bases int    // how many others it has to be put together from
}

func (s *CatalogSnapshot) walk(c *codec) {
	number(c, &s.Seq)
	number(c, &s.Bases)
}

func catalogKey(hash [32]byte) []byte { return append([]byte(keyCatalog), hash[:]...) }

func catalogRecorded(t *tx, e *event.Envelope, p *event.CatalogRecorded) {
	if p.Part < p.Parts || t.space.past {
		return
	}
	s := CatalogSnapshot{Seq: e.Seq}
	if base := (CatalogSnapshot{}); p.Base != [32]byte{} && t.get(catalogKey(p.Base), &base) {
		s.Bases = base.Bases + 1
	}
	t.put(catalogKey(p.Hash), &s)
}

// CatalogSnapshot finds a snapshot of the catalogues by its hash.
func (v *View) CatalogSnapshot(hash [32]byte) (s CatalogSnapshot, ok bool, err error) {
	ok, err = v.read(catalogKey(hash), &s)
	return s, ok, err
}
