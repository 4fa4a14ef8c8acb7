package checkpoint

import (
	"fmt"
	"math/bits"
	"time"

	"golang.org/x/mod/sumdb/tlog"
)

// pathBound is the most hashes that a path in a tree of count leaves can have.
func pathBound(count uint32) int { return bits.Len32(count - 1) }

// An Accumulator collects the event hashes of one batch while it fills. It is
// for one goroutine at a time.
type Accumulator struct {
	logID  [16]byte
	key    *PrivateKey
	first  uint64
	hashes [][32]byte
}

// NewAccumulator makes the Accumulator of a log, for batches signed by key.
func NewAccumulator(logID [16]byte, key *PrivateKey) *Accumulator {
	return &Accumulator{logID: logID, key: key}
}

// Add takes the next event of the batch. The first one says where the batch
// begins; a gap is a fault of the caller and is refused.
func (a *Accumulator) Add(seq uint64, eventHash [32]byte) error {
	if len(a.hashes) == 0 {
		a.first = seq
	}
	if seq != a.first+uint64(len(a.hashes)) || seq == 0 || seq > MaxSize {
		return fmt.Errorf("event %d does not follow %d events from %d", seq, len(a.hashes), a.first)
	}
	if len(a.hashes) == MaxBatch {
		return fmt.Errorf("a batch of more than %d events has no receipts", MaxBatch)
	}
	a.hashes = append(a.hashes, eventHash)
	return nil
}

// Sign ends the batch, signs its root once and makes room for the next one. at
// is the time that its receipts tell. An empty batch gives nil.
func (a *Accumulator) Sign(at time.Time) *Batch {
	if len(a.hashes) == 0 {
		return nil
	}
	b := &Batch{logID: a.logID, first: a.first, hashes: a.hashes, at: time.Unix(0, at.UnixNano()).UTC(), keyID: a.key.Public().ID()}
	a.hashes = nil
	leaves := make([]tlog.Hash, len(b.hashes))
	for i, h := range b.hashes {
		leaves[i] = leaf(h)
	}
	b.levels = levelsOf(leaves)
	b.root = b.levels[len(b.levels)-1][0]
	b.signature = [64]byte(a.key.Sign(batchMessage(b.logID, b.first, uint32(len(b.hashes)), b.root, b.at.UnixNano())))
	return b
}

// levelsOf is the whole tree over leaves, level by level up to its root: a node that has no
// neighbour stands on the next level as it is (RFC 6962, part 2.1). A receipt's path is
// taken out of it without hashing anything.
func levelsOf(leaves []tlog.Hash) [][]tlog.Hash {
	levels := [][]tlog.Hash{leaves}
	for level := leaves; len(level) > 1; {
		next := make([]tlog.Hash, 0, (len(level)+1)/2)
		for i := 0; i+1 < len(level); i += 2 {
			next = append(next, tlog.NodeHash(level[i], level[i+1]))
		}
		if len(level)%2 == 1 {
			next = append(next, level[len(level)-1])
		}
		levels, level = append(levels, next), next
	}
	return levels
}

// A Batch is a signed batch that receipts are made from. It does not change
// and may be used by many goroutines. Its receipts may leave the process only
// after the batch is durable: they say that it is.
type Batch struct {
	logID     [16]byte
	first     uint64
	hashes    [][32]byte
	levels    [][]tlog.Hash // of the tree over hashes, from the leaves to the root
	root      [32]byte
	at        time.Time
	keyID     string
	signature [64]byte
}

// Root is the root over the batch's event hashes.
func (b *Batch) Root() [32]byte { return b.root }

// First and Last are the batch's ends, both included.
func (b *Batch) First() uint64 { return b.first }

// Last is the seq of the batch's last event.
func (b *Batch) Last() uint64 { return b.first + uint64(len(b.hashes)) - 1 }

// Receipt makes the receipt of one event of the batch.
func (b *Batch) Receipt(seq uint64) (*Receipt, error) {
	if seq < b.first || seq > b.Last() {
		return nil, fmt.Errorf("event %d is not among %d to %d", seq, b.first, b.Last())
	}
	i := seq - b.first
	path := make(Proof, 0, len(b.levels)-1)
	for at, levels := i, b.levels; len(levels) > 1; at, levels = at/2, levels[1:] {
		if neighbour := at ^ 1; neighbour < uint64(len(levels[0])) {
			path = append(path, levels[0][neighbour])
		}
	}
	return &Receipt{LogID: b.logID, Seq: seq, EventHash: b.hashes[i], FirstSeq: b.first, Count: uint32(len(b.hashes)), Root: b.root,
		Path: path, Time: b.at, KeyID: b.keyID, Signature: b.signature}, nil
}
