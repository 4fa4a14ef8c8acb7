// Package evidencetest builds small logs of real events, with the tree and the
// key that vouch for them, for tests and for the vectors on disk. Everything in
// it is the same at every run.
package evidencetest

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/binary"
	"encoding/pem"
	"fmt"
	"iter"
	"time"

	"writegate/eventlog/checkpoint"
	"writegate/eventlog/event"
	"writegate/eventlog/frame"
)

// Created is when every log of this package began, in ns since 1970.
const Created = 1735689600000000000

// A Log is a log in memory. It is an evidence.Source.
type Log struct {
	header frame.Header
	frames []frame.Frame
	tree   *checkpoint.Tree
	hashes checkpoint.Memory
}

// New makes a log of n events whose payloads show every kind of value.
func New(n int) *Log { return NewNamed("gate.example", n) }

// NewNamed is New with an origin of its own.
func NewNamed(origin string, n int) *Log {
	return NewOf([16]byte(bytes.Repeat([]byte{0x11}, 16)), origin, n)
}

// NewOf is NewNamed with a log_id of its own.
func NewOf(id [16]byte, origin string, n int) *Log {
	h := frame.Header{LogID: id, FirstSeq: 1, Origin: origin, CreatedNS: Created}
	copy(h.Nonce[:], bytes.Repeat([]byte{0x22}, 32))
	l := &Log{header: parsed(h), tree: must(checkpoint.OpenTree(0, nil))}
	for seq := uint64(1); seq <= uint64(n); seq++ {
		l.Append(Draft(seq))
	}
	return l
}

func parsed(h frame.Header) frame.Header {
	b, err := h.Encode()
	if err == nil {
		h, err = frame.ParseHeader(b)
	}
	return must(h, err)
}

// must is for what the builder itself made and can't be wrong.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// Draft is the event that New puts at seq.
func Draft(seq uint64) event.Draft {
	at := time.Unix(0, Created+int64(seq)*1e9+int64(seq)).UTC()
	d := event.Draft{Type: "request_received", TypeVersion: 1, Time: at, Context: event.Context{Actor: "ana", App: "shop", Tenant: "t1", Env: "prod"}}
	sum := sha256.Sum256(fmt.Appendf(nil, "event %d", seq))
	copy(d.ID[:], sum[:16])
	d.ID[6], d.ID[8] = d.ID[6]&0x0f|0x70, d.ID[8]&0x3f|0x80
	if seq == 1 {
		d.Type, d.Context = "startup", event.Context{Actor: "system", Mode: "enforce"}
	}
	if seq%3 == 0 {
		d.Context.Fingerprint, d.Context.RequestID = "f00d", "req_01944b3a-7d5e-7a1b-8c2d-000000000001"
	}
	d.Payload = event.NewPayload(
		event.Field{Key: "$odd", Value: event.Map(event.Field{Key: "$$", Value: event.Bool(seq%2 == 0)})},
		event.Field{Key: "large", Value: event.Int(-1 << 62)},
		event.Field{Key: "n", Value: event.Int(int64(seq) - 2)},
		event.Field{Key: "sql_text", Value: event.String(fmt.Sprintf("SELECT '%d \\ \"é\" \t\x01\u2028'", seq))},
		event.Field{Key: "sum", Value: event.Bytes(sum[:])},
		event.Field{Key: "tables", Value: event.List(event.String(""), event.List(), event.Bytes(nil))},
	)
	return d
}

// Startup is a startup event that names a signing key and, unless it is nil, the log
// before this one.
func Startup(vkey string, before *event.Predecessor) event.Draft {
	p := event.Startup{Version: "0.6.0", Profile: "development", Fsync: "required", VerifyOnStart: "active", OnTornTail: "record", SigningVKey: vkey, Predecessor: before}
	d := Draft(1)
	d.Payload = p.Fields()
	return d
}

// Append puts an event at the end.
func (l *Log) Append(d event.Draft) {
	seq, prev := uint64(len(l.frames))+1, l.header.Hash
	if seq > 1 {
		prev = l.frames[seq-2].Hash
	}
	record := must(event.Encode(nil, &d))
	l.frames = append(l.frames, frame.Frame{Seq: seq, PreviousHash: prev, Record: record, Hash: frame.EventHash(seq, prev, record)})
	if err := l.tree.Append(&l.hashes, l.frames[seq-1].Hash); err != nil {
		panic(err)
	}
}

// Header implements evidence.Source.
func (l *Log) Header() frame.Header { return l.header }

// Frames implements evidence.Source.
func (l *Log) Frames(_ context.Context, first, last uint64) iter.Seq2[frame.Frame, error] {
	return func(yield func(frame.Frame, error) bool) {
		for seq := max(first, 1); seq <= min(last, uint64(len(l.frames))); seq++ {
			if !yield(l.frames[seq-1], nil) {
				return
			}
		}
	}
}

// Before names this log, up to last, as the one before another.
func (l *Log) Before(last uint64) *event.Predecessor {
	return &event.Predecessor{LogID: l.header.LogID, LastSeq: last, LastEventHash: l.frames[last-1].Hash, Reason: "a lost disk"}
}

// At gives the frame of seq, to be changed where a test wants damage.
func (l *Log) At(seq uint64) *frame.Frame { return &l.frames[seq-1] }

// WAL is the log's file: one segment in batches of up to three events.
func (l *Log) WAL() []byte {
	b := must(l.header.Encode())
	for at, size := range l.batches {
		b = appendBatch(b, l.frames[at:at+size])
	}
	return b
}

func appendBatch(segment []byte, frames []frame.Frame) []byte {
	var batch []byte
	for i, f := range frames {
		if i+1 < len(frames) {
			f.Flags = frame.FlagMore
		}
		batch = frame.Append(batch, &f)
	}
	if err := frame.SealBatch(batch, uint64(len(segment))); err != nil {
		panic(err)
	}
	return append(segment, batch...)
}

// Segments is the log in several files, each event in a batch of its own: the
// sealed ones end with the events in ends, the active one follows.
func (l *Log) Segments(ends ...uint64) [][]byte {
	var parts [][]byte
	first := uint64(1)
	for i, end := range append(ends, uint64(len(l.frames))) {
		h := l.header
		h.Segment, h.FirstSeq = uint32(i), first
		if i > 0 {
			h.PrevHash = l.frames[first-2].Hash
		}
		b := must(h.Encode())
		for _, f := range l.frames[first-1 : end] {
			b = appendBatch(b, []frame.Frame{f})
		}
		parts, first = append(parts, b), end+1
	}
	return parts
}

// batches gives the log's batches: first index and size.
func (l *Log) batches(yield func(at, size int) bool) {
	for at, n := 0, 0; at < len(l.frames); n++ {
		size := min(n%3+1, len(l.frames)-at)
		if !yield(at, size) {
			return
		}
		at += size
	}
}

// Receipts are those of every event, in order, signed batch by batch.
func (l *Log) Receipts(key *checkpoint.PrivateKey) []string {
	return l.ReceiptsOf(key, l.header.LogID)
}

// ReceiptsOf is Receipts as if the log had this log_id.
func (l *Log) ReceiptsOf(key *checkpoint.PrivateKey, logID [16]byte) []string {
	var texts []string
	for at, size := range l.batches {
		acc := checkpoint.NewAccumulator(logID, key)
		for _, f := range l.frames[at : at+size] {
			if err := acc.Add(f.Seq, f.Hash); err != nil {
				panic(err)
			}
		}
		batch := acc.Sign(time.Unix(0, Created+int64(at+size)*1e9).UTC())
		for _, f := range l.frames[at : at+size] {
			texts = append(texts, must(must(batch.Receipt(f.Seq)).Text()))
		}
	}
	return texts
}

// Head is the head file of the whole log in one segment.
func (l *Log) Head() []byte { return l.headOf([][]byte{l.WAL()}) }

// SegmentsHead is the head file of the log in these segments.
func (l *Log) SegmentsHead(parts [][]byte) []byte { return l.headOf(parts) }

func (l *Log) headOf(parts [][]byte) []byte {
	active := len(parts) - 1
	last := l.frames[len(l.frames)-1]
	h := frame.Head{LogID: l.header.LogID, Seq: last.Seq, EventHash: last.Hash, Segment: uint32(active), Clean: true,
		EndOff: uint64(len(parts[active])), Counter: 1, Time: time.Unix(0, Created+1).UTC()}
	return append(make([]byte, frame.SlotSize), h.Encode()...)
}

// JSONL is the readable copy of the events from first on.
func (l *Log) JSONL(first uint64) []byte {
	var b []byte
	for _, f := range l.frames[first-1:] {
		d := must(event.Decode(f.Record))
		b = append(event.AppendJSON(b, &event.Envelope{Seq: f.Seq, PreviousHash: f.PreviousHash, Hash: f.Hash, Draft: d}), '\n')
	}
	return b
}

// Key makes a key from a name, the same one at each run.
func Key(name string) *checkpoint.PrivateKey {
	seed := sha256.Sum256([]byte(name))
	der := must(x509.MarshalPKCS8PrivateKey(ed25519.NewKeyFromSeed(seed[:])))
	return must(checkpoint.ParsePrivateKey(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})))
}

// Cosign adds a witness's line to a note (C2SP tlog-cosignature) and gives the
// witness's vkey.
func Cosign(note []byte, name string, key *checkpoint.PrivateKey, at time.Time) (cosigned []byte, vkey string) {
	text, _, _ := bytes.Cut(note, []byte("\n\n"))
	seconds := uint64(at.Unix())
	public := key.Public()
	typed := append([]byte{4}, public[:]...)
	sum := sha256.Sum256(append([]byte(name+"\n"), typed...))
	signature := key.Sign(fmt.Appendf(nil, "cosignature/v1\ntime %d\n%s\n", seconds, text))
	raw := append(binary.BigEndian.AppendUint64(bytes.Clone(sum[:4]), seconds), signature...)
	cosigned = fmt.Appendf(bytes.Clone(note), "\u2014 %s %s\n", name, base64.StdEncoding.EncodeToString(raw))
	return cosigned, fmt.Sprintf("%s+%08x+%s", name, sum[:4], base64.StdEncoding.EncodeToString(typed))
}

// A Signer vouches for a log with a key; it is an evidence.Signer.
type Signer struct {
	Log *Log
	Key *checkpoint.PrivateKey
	// Size of the tree in checkpoints; 0 is the whole log.
	Size uint64
}

// Public implements evidence.Signer.
func (s Signer) Public() checkpoint.PublicKey { return s.Key.Public() }

// Sign implements evidence.Signer.
func (s Signer) Sign(message []byte) []byte { return s.Key.Sign(message) }

// Checkpoint implements evidence.Signer.
func (s Signer) Checkpoint(context.Context, uint64) ([]byte, error) {
	size := s.Size
	if size == 0 {
		size = s.Log.tree.Size()
	}
	signer, err := checkpoint.NewSigner(s.Log.header.Origin, s.Key)
	if err != nil {
		return nil, err
	}
	n, err := signer.Sign(&s.Log.hashes, size, nil)
	if err != nil {
		return nil, err
	}
	return n.Raw, nil
}

// Prove implements evidence.Signer.
func (s Signer) Prove(_ context.Context, size, seq uint64) (checkpoint.Proof, error) {
	return checkpoint.ProveInclusion(&s.Log.hashes, size, seq)
}
