package pgexec

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"writegate/fixtures/postgres"
)

// The same statements by a plain pgx pool, for comparison.
func plain(b *testing.B, url string) *pgxpool.Pool {
	cfg, err := pgxpool.ParseConfig(url)
	require.NoError(b, err)
	cfg.MaxConns = 4
	pool, err := pgxpool.NewWithConfig(context.Background(), cfg)
	require.NoError(b, err)
	b.Cleanup(pool.Close)
	return pool
}

func BenchmarkRead(b *testing.B) {
	url := postgres.ForTest(b)
	db, side := openURL(b, url)
	side.run("CREATE TABLE t (a int PRIMARY KEY, b text); INSERT INTO t SELECT g, 'row ' || g FROM generate_series(1, 1000) g")
	st := Statement{SQL: "SELECT a, b FROM t WHERE a = $1", ParamOIDs: []uint32{23}, Params: [][]byte{[]byte("77")}}
	b.Run("pgexec", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			_, err := db.Read(context.Background(), "", st, Limits{}, db.NewRows(0))
			require.NoError(b, err)
		}
	})
	pool := plain(b, url)
	b.Run("pgx", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			var a int
			var t string
			require.NoError(b, pool.QueryRow(context.Background(), st.SQL, 77).Scan(&a, &t))
		}
	})
}

func BenchmarkWrite(b *testing.B) {
	url := postgres.ForTest(b)
	db, side := openURL(b, url)
	side.run("CREATE TABLE t (a int, b text)")
	b.Run("pgexec", func(b *testing.B) {
		mustWrite(b, db, "INSERT INTO t VALUES (1, 'x')")
		b.ReportAllocs()
		before := side.backendCPU()
		for b.Loop() {
			mustWrite(b, db, "INSERT INTO t VALUES (1, 'x')")
		}
		b.ReportMetric(float64(side.backendCPU()-before)/1e3/float64(b.N), "server-us/op")
	})
	pool := plain(b, url)
	b.Run("pgx", func(b *testing.B) {
		_, err := pool.Exec(context.Background(), "INSERT INTO t VALUES (1, 'x')")
		require.NoError(b, err)
		b.ReportAllocs()
		before := side.backendCPU()
		for b.Loop() {
			_, err := pool.Exec(context.Background(), "INSERT INTO t VALUES (1, 'x')")
			require.NoError(b, err)
		}
		b.ReportMetric(float64(side.backendCPU()-before)/1e3/float64(b.N), "server-us/op")
	})
}

// More clients than connections, as a busy gate has them: a write that waits is begun
// behind the COMMIT before it.
func BenchmarkWriteOfManyClients(b *testing.B) {
	url := postgres.ForTest(b)
	db, side := openURL(b, url, func(c *Config) { c.PoolMax, c.AcquireTimeout = 16, time.Minute })
	side.run("CREATE TABLE t (a int, b text)")
	mustWrite(b, db, "INSERT INTO t VALUES (1, 'x')")
	b.SetParallelism(32)
	b.ReportAllocs()
	b.ResetTimer()
	before := side.backendCPU()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			mustWrite(b, db, "INSERT INTO t VALUES (1, 'x')")
		}
	})
	b.ReportMetric(float64(side.backendCPU()-before)/1e3/float64(b.N), "server-us/op")
}

// backendCPU is the processor time that the other backends of the database have
// used, in nanoseconds.
func (s *side) backendCPU() (used int64) {
	for pid := range strings.FieldsSeq(s.ask("SELECT string_agg(pid::text, ' ') FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()")) {
		var ran int64
		stat, err := os.ReadFile("/proc/" + pid + "/schedstat")
		require.NoError(s.t, err)
		_, err = fmt.Sscan(string(stat), &ran)
		require.NoError(s.t, err)
		used += ran
	}
	return used
}

func BenchmarkRowsToJSON(b *testing.B) {
	db := &DB{cfg: Config{}.withDefaults()}
	fields := []Field{{Label: "id", TypeOID: 20}, {Label: "name", TypeOID: 25}, {Label: "price", TypeOID: 1700}, {Label: "tags", TypeOID: 1009}}
	values := [][]byte{[]byte("123456"), []byte("a name with \"quotes\""), []byte("12.50"), []byte(`{red,"dark blue"}`)}
	b.ReportAllocs()
	for b.Loop() {
		rows := db.NewRows(0)
		require.NoError(b, rows.Fields(fields))
		for range 100 {
			require.NoError(b, rows.Row(values))
		}
	}
}
