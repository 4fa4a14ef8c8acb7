package projections

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

func BenchmarkZ(b *testing.B) {
	log := realLog(b, benchEvents(b, 60_000))
	b.ReportAllocs()
	b.ResetTimer()
	_, cpu := spent(func() {
		for round := range b.N {
			s, err := Open(Options{Dir: fmt.Sprintf("%s/fold%d", b.TempDir(), round)})
			require.NoError(b, err)
			require.NoError(b, s.Connect(b.Context(), log))
			require.NoError(b, s.Close())
		}
	})
	b.ReportMetric(cpu*1e6/float64(b.N)/240000, "cpu-us/event")
	b.ReportMetric(b.Elapsed().Seconds()*1e6/float64(b.N)/240000, "us/event")
}
