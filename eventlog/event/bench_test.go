package event

import (
	"testing"
	"time"
)

// decisionDraft is a decision as a plain write causes it: about 400 bytes.
func decisionDraft() Draft {
	at := time.Unix(0, goldenTime)
	return New(at, Context{
		PolicyVersion: "core-write-gate@1.4.0", Operation: "INSERT", Fingerprint: "a0eadc1fe2b8be4d", Decision: "ALLOW",
		Actor: "svc-orders", App: "orders", Tenant: "acme", Env: "prod", RequestID: NewRequestID(at), Mode: "enforce",
	}, &DecisionRecorded{
		Enforced: true, RuleID: "app-dml", Layer: "policy", Matched: []string{"app-dml"}, Engine: 1, Run: "transaction",
		Facts: DecisionFacts{QueryTypes: []string{"INSERT"}, Class: "write", TablesWritten: []string{"public.orders"}, ColumnsWritten: []string{"public.orders.id", "public.orders.total"}, Flags: []string{"parameters"}},
	})
}

func BenchmarkEncode(b *testing.B) {
	d := decisionDraft()
	buf := mustEncode(b, &d)
	b.SetBytes(int64(len(buf)))
	b.ReportAllocs()
	for b.Loop() {
		buf, _ = Encode(buf[:0], &d)
	}
}

func BenchmarkFields(b *testing.B) {
	d := decisionDraft()
	p, err := Open(&d)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		p.Fields()
	}
}

func BenchmarkDecode(b *testing.B) {
	d := decisionDraft()
	record := mustEncode(b, &d)
	b.SetBytes(int64(len(record)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Decode(record); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkAppendJSON(b *testing.B) {
	e := Envelope{Seq: 7, Draft: decisionDraft()}
	line := AppendJSON(nil, &e)
	b.SetBytes(int64(len(line)))
	b.ReportAllocs()
	for b.Loop() {
		line = AppendJSON(line[:0], &e)
	}
}

func BenchmarkParseJSON(b *testing.B) {
	e := Envelope{Seq: 7, Draft: decisionDraft()}
	line := AppendJSON(nil, &e)
	b.SetBytes(int64(len(line)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := ParseJSON(line); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkNewID(b *testing.B) {
	at := time.Unix(0, goldenTime)
	for b.Loop() {
		NewID(at)
	}
}
