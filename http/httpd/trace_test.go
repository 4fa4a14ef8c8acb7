package httpd

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestATraceparentIsReadAsTheSpecificationSays(t *testing.T) {
	const id, span = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
	for _, c := range []struct {
		name   string
		values []string
		known  bool
	}{
		{"sampled", []string{"00-" + id + "-" + span + "-01"}, true},
		{"not sampled", []string{"00-" + id + "-" + span + "-00"}, true},
		{"a later version", []string{"01-" + id + "-" + span + "-01-what comes"}, true},
		{"a later version without more", []string{"cc-" + id + "-" + span + "-01"}, true},
		{"none", nil, false},
		{"empty", []string{""}, false},
		{"twice", []string{"00-" + id + "-" + span + "-01", "00-" + id + "-" + span + "-01"}, false},
		{"this version with more", []string{"00-" + id + "-" + span + "-01-x"}, false},
		{"a later version without its dash", []string{"01-" + id + "-" + span + "-01x"}, false},
		{"the forbidden version", []string{"ff-" + id + "-" + span + "-01"}, false},
		{"capital letters", []string{"00-4BF92F3577B34DA6A3CE929D0E0E4736-" + span + "-01"}, false},
		{"no trace", []string{"00-00000000000000000000000000000000-" + span + "-01"}, false},
		{"no span", []string{"00-" + id + "-0000000000000000-01"}, false},
		{"a quote", []string{"00-" + id + "-00f067aa0ba902'7-01"}, false},
		{"dashes elsewhere", []string{"00-" + id[:31] + "-" + span + "0-01"}, false},
		{"too short", []string{"00-" + id + "-" + span}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := http.Header{}
			for _, v := range c.values {
				h.Add("traceparent", v)
			}
			want := Trace{}
			if c.known {
				want = Trace{id, span}
			}
			require.Equal(t, want, traceOf(h))
		})
	}
	require.Equal(t, id+"-"+span, Trace{id, span}.String())
	require.Empty(t, Trace{}.String())
}

func FuzzTraceparent(f *testing.F) {
	f.Add("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
	f.Fuzz(func(t *testing.T, header string) {
		trace := traceOf(http.Header{"Traceparent": {header}})
		if s := trace.String(); s != "" && len(s) != 49 {
			t.Fatalf("%q", s)
		}
	})
}
