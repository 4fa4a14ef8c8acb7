package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A person looks at tables before anything else. psql asks for foreign keys,
// triggers, partitions and sizes with functions that no safe read may call, so the
// policies that come with the gate have a rule for them.
func TestPsqlShowsTablesUnderThePoliciesThatComeWithTheGate(t *testing.T) {
	t.Parallel()
	g := startWire(t, "GATE_RATE_LIMIT_BURST=1000")
	g.execute(t, `CREATE TABLE parcels (id bigint PRIMARY KEY, parent bigint REFERENCES parcels, sent date) `)
	g.execute(t, `CREATE FUNCTION noted() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN new; END'`)
	g.execute(t, `CREATE TRIGGER note BEFORE INSERT ON parcels FOR EACH ROW EXECUTE FUNCTION noted()`)
	g.execute(t, `CREATE TABLE parts (id int, d date) PARTITION BY RANGE (d)`)
	g.execute(t, `CREATE TABLE parts_2026 PARTITION OF parts FOR VALUES FROM ('2026-01-01') TO ('2027-01-01')`)
	program, through := clientProgram(t, "psql"), "postgres://ana@"+g.wire+"/"+g.databaseName(t)+"?sslmode=disable"
	own := `\l+ ` + g.databaseName(t) // those of other tests may be dropped while they are measured
	for _, command := range []string{`\d`, `\d parcels`, `\d+ parcels`, `\d parts`, `\d+ parts_2026`, `\dt+`, `\di+`, own, `\dn`, `\df`} {
		gated := psql(t, program, through, command+"\n")
		require.NotContains(t, gated, "ERROR", command)
		if !strings.Contains(command, "+") { // sizes may differ by a page in between
			require.Equal(t, psql(t, program, libpqURL(t, g.database), command+"\n"), gated, command)
		}
	}
}
