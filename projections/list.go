package projections

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/cockroachdb/pebble/v2"
)

// A Page asks for a piece of a list. Lists run newest first, or oldest first
// with Asc.
type Page struct {
	Limit  int    // 1 to 1,000; 0 = 100
	Cursor string // as the page before gave it; "" = from the start
	Asc    bool
	// Work is how many bytes of records are looked at, each of which counts 4 KiB at
	// least; 0 = no bound. A page for which more has to be looked through ends there,
	// perhaps empty, and the next one goes on.
	Work int
}

const (
	defaultLimit = 100
	maxLimit     = 1000
	leastWork    = 4 << 10
)

// PageWork bounds the pages that clients ask for.
const PageWork = 32 << 20

func (p *Page) limit() int {
	if p.Limit <= 0 {
		return defaultLimit
	}
	return min(p.Limit, maxLimit)
}

// A cursor is the seq at which a page ended, bound to the list, its filter and
// its order: with another question it is refused instead of giving an answer
// that looks right. It stays good while the list grows.
const cursorSum = 8

func cursorOf(seq uint64, p *Page, question []string) string {
	b := binary.BigEndian.AppendUint64(nil, seq)
	return base64.RawURLEncoding.EncodeToString(append(b, questionSum(p.Asc, question)...))
}

// seqOf reads a cursor; 0 is the start.
func seqOf(p *Page, question []string) (uint64, error) {
	if p.Cursor == "" {
		return 0, nil
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(p.Cursor)
	if err != nil || len(b) != 8+cursorSum || string(b[8:]) != string(questionSum(p.Asc, question)) {
		return 0, ErrCursor
	}
	seq := binary.BigEndian.Uint64(b)
	if seq == 0 {
		return 0, ErrCursor
	}
	return seq, nil
}

func questionSum(asc bool, question []string) []byte {
	b := fmt.Appendf(nil, "%t %q", asc, question)
	sum := sha256.Sum256(b)
	return sum[:cursorSum]
}

// A listing is a list of records that are kept in one order in several states.
type listing struct {
	index, records string // key prefixes
	states         []string
	filter         []string // what the cursor is bound to
}

// each walks the index in the order of seq over all states, reads each record
// and hands those that keep wants to take, until the page has its number of them
// or take has no room for one: that one begins the next page.
func each[R any, P interface {
	*R
	record
}](v *View, l listing, page Page, keep func(*R) bool, take func(*R) (room bool, err error)) (next string, err error) {
	question := append([]string{l.index}, l.filter...)
	from, err := seqOf(&page, question)
	if err != nil {
		return "", err
	}
	walk, err := v.walk(l, from, page.Asc)
	if err != nil {
		return "", err
	}
	last, looked := uint64(0), 0
	for taken := 0; err == nil; {
		seq, id, ok := walk.next()
		if !ok {
			break
		}
		if page.Work > 0 && looked > page.Work {
			next = cursorOf(last, &page, question)
			break
		}
		r := new(R)
		var size int
		size, ok, err = v.readSize(append([]byte(l.records), id...), P(r))
		looked += max(leastWork, size)
		if err != nil || !ok || !keep(r) {
			if taken < page.limit() {
				last = seq
			}
			continue
		}
		room := taken < page.limit()
		if room {
			room, err = take(r)
		}
		if !room {
			next = cursorOf(last, &page, question)
			break
		}
		last = seq
		taken++
	}
	if err = walk.close(err); err != nil {
		return "", err
	}
	return next, nil
}

// gather makes a slice of a walk, for lists whose records are small or few.
func gather[R any](walk func(take func(*R) (bool, error)) (string, error)) (found []R, next string, err error) {
	next, err = walk(func(r *R) (bool, error) {
		found = append(found, *r)
		return true, nil
	})
	if err != nil {
		return nil, "", err
	}
	return found, next, nil
}

// A walk merges the index ranges of several states.
type walk struct {
	view   *View
	asc    bool
	ranges []*pebble.Iterator
}

// walk begins behind the seq from, in the direction asked for.
func (v *View) walk(l listing, from uint64, asc bool) (*walk, error) {
	w := &walk{view: v, asc: asc}
	for _, state := range l.states {
		lower, upper := listPrefix(l.index, state), after(listPrefix(l.index, state))
		if asc && from > 0 {
			lower = listKey(l.index, state, from+1)
		} else if from > 0 {
			upper = listKey(l.index, state, from)
		}
		it, err := v.iter(lower, upper)
		if err != nil {
			return nil, w.close(err)
		}
		w.ranges = append(w.ranges, it)
		if asc {
			it.First()
		} else {
			it.Last()
		}
	}
	return w, nil
}

func (w *walk) next() (seq uint64, id string, ok bool) {
	var best *pebble.Iterator
	for _, it := range w.ranges {
		if !it.Valid() {
			continue
		}
		if at := seqOfKey(it.Key()); best == nil || w.asc == (at < seq) {
			best, seq = it, at
		}
	}
	if best == nil {
		return 0, "", false
	}
	id = string(best.Value())
	if w.asc {
		best.Next()
	} else {
		best.Prev()
	}
	return seq, id, true
}

// seqOfKey is the seq at the end of a listKey.
func seqOfKey(key []byte) uint64 { return binary.BigEndian.Uint64(key[len(key)-8:]) }

func (w *walk) close(err error) error {
	for _, it := range slices.Backward(w.ranges) {
		err = w.view.closeIter(it, err)
	}
	return err
}
