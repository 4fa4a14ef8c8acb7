package event

import (
	"testing"
	"time"
)

// writeDrafts are the four events of a plain write.
func writeDrafts() []Draft {
	at := time.Unix(0, goldenTime)
	decision := decisionDraft()
	ctx := decision.Context
	ctx.ExecutionID, ctx.Mode = NewExecutionID(at), ""
	return []Draft{
		New(at, ctx, &RequestReceived{SQLDigest: [32]byte{1}, SQLBytes: 200, RequestDigest: [32]byte{2}}),
		decision,
		New(at, ctx, &ExecutionDispatched{Path: PathTx, SQLSHA256: [32]byte{1}, Limits: Limits{Rows: 1000, Bytes: 1 << 20, TimeoutMS: 30_000},
			Upstream: Upstream{SystemIdentifier: "7423901482317420001", Timeline: "1", CrashMark: "0/1A2B3C8", Host: "db.internal", Role: "writer", BackendPID: 4711, BackendStart: "2025-01-01 00:00:00+00"}, XID: 70_001}),
		New(at, ctx, &ExecutionSuccess{CommandTag: "INSERT 0 1", RowCount: 1, RowsChanged: 1, Bytes: 12, DurationUS: 1834, Basis: "commit_acknowledged"}),
	}
}

// BenchmarkReplay reads these events as a replay does, in two halves: from the log,
// and into their Go structs. Beside it, in one, is what it takes to make fields of
// them first, as a reader of single events does.
func BenchmarkReplay(b *testing.B) {
	for _, d := range writeDrafts() {
		record := mustEncode(b, &d)
		p := specByType[d.Type].New()
		b.Run(string(d.Type)+"/decode", func(b *testing.B) {
			var m Decoder
			var into Draft
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if i&127 == 0 {
					m.Reset()
				}
				if err := m.Decode(record, &into); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(string(d.Type)+"/parse", func(b *testing.B) {
			var m Decoder
			var into Draft
			if err := m.Decode(record, &into); err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				if err := into.Parse(p); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(string(d.Type)+"/through-fields", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				into, err := Decode(record)
				if err != nil {
					b.Fatal(err)
				}
				if err := into.Parse(p); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkSkim is the part of a decode that looks at the payload.
func BenchmarkSkim(b *testing.B) {
	for _, d := range writeDrafts() {
		packed := packedOf(b, d.Payload)
		b.Run(string(d.Type), func(b *testing.B) {
			for b.Loop() {
				if skimPayload(packed, 0) != len(packed) {
					b.Fatal("refused")
				}
			}
		})
	}
}
