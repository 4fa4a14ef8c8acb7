package classify

import (
	"strings"
	"testing"

	pg "github.com/pganalyze/pg_query_go/v5"
	"github.com/stretchr/testify/require"
)

func newTestSchema(t testing.TB) *schema {
	t.Helper()
	s, err := newSchema(schemaTSV, enumsTSV)
	require.NoError(t, err)
	return s
}

func TestEveryFieldOfTheGrammarHasAnEntry(t *testing.T) {
	s := newTestSchema(t)
	byName := map[string]*message{}
	for i := range s.messages {
		byName[s.messages[i].name] = &s.messages[i]
	}
	messages := pg.File_pg_query_proto.Messages()
	count := 0
	for i := range messages.Len() {
		m := messages.Get(i)
		if m.Name() == "Node" {
			continue
		}
		require.NotNil(t, byName[string(m.Name())], "no entry for message %s: run make pg-tables", m.Name())
		for j := range m.Fields().Len() {
			f := m.Fields().Get(j)
			id, ok := byName[string(m.Name())].fields.find([]byte(f.JSONName()))
			require.True(t, ok, "no entry for %s.%s: run make pg-tables", m.Name(), f.JSONName())
			require.Equal(t, f.JSONName(), s.fields[id].name)
			require.Equal(t, f.IsList(), s.fields[id].list)
			count++
		}
	}
	require.Greater(t, count, 1200)
}

func TestEveryNodeKindHasAnEntry(t *testing.T) {
	s := newTestSchema(t)
	kinds := pg.File_pg_query_proto.Messages().ByName("Node").Fields()
	for i := range kinds.Len() {
		id, ok := s.nodes.find([]byte(kinds.Get(i).JSONName()))
		require.True(t, ok, kinds.Get(i).JSONName())
		require.Equal(t, string(kinds.Get(i).Message().Name()), s.messages[id].name)
	}
	require.Equal(t, 252, kinds.Len())
}

func TestEveryEnumValueHasAnEntry(t *testing.T) {
	decided := map[string]bool{}
	rows, err := tsv(enumsTSV, 3)
	require.NoError(t, err)
	for _, r := range rows {
		decided[r[0]+"."+r[1]] = true
	}
	enums := pg.File_pg_query_proto.Enums()
	for i := range enums.Len() {
		for j := range enums.Get(i).Values().Len() {
			name := string(enums.Get(i).Name()) + "." + string(enums.Get(i).Values().Get(j).Name())
			require.True(t, decided[name], "no entry for %s: run make pg-tables", name)
		}
	}
	require.Len(t, rows, 1005)
}

// What holds nodes is walked or unknown, and what is left out of the tree is numbers
// alone: an enum's value or a text that nobody looks at would count as harmless.
func TestNothingButNumbersIsLeftOut(t *testing.T) {
	s := newTestSchema(t)
	skipped := 0
	for _, m := range s.messages {
		for id := m.first; id != 0 && id < m.end; id++ {
			f := &s.fields[id]
			place := m.name + "." + f.name
			switch {
			case f.act == actSkip:
				skipped++
				require.Equal(t, holdsNumber, f.holds, place)
			case f.act == actUnknown || f.act == actLocation:
			case f.holds == holdsNode || f.holds == holdsMessage:
				require.GreaterOrEqual(t, f.act, actWalk, place)
			default:
				require.Equal(t, actRead, f.act, place)
			}
		}
	}
	require.Equal(t, 22, skipped)
}

// A value of an enum that has no entry, or none for this server, is noted wherever it
// stands in the tree, and so is a field and a node.
func TestAValueWithoutEntryIsNotedAtEveryPlace(t *testing.T) {
	s := newTestSchema(t)
	places := 0
	for _, m := range s.messages {
		for id := m.first; m.known && id != 0 && id < m.end; id++ {
			f := &s.fields[id]
			if f.holds != holdsEnum || f.act == actUnknown {
				continue
			}
			places++
			node := strings.Replace(`{"version":160001,"stmts":[{"stmt":{"NODE":{"FIELD":"NO_SUCH_VALUE"}}}]}`, "FIELD", f.name, 1)
			own := tree{json: []byte(strings.Replace(node, "NODE", m.name, 1))}
			new(treeReader).read(s, &own)
			require.False(t, own.broken, m.name)
			require.Equal(t, []string{f.name + "=NO_SUCH_VALUE"}, subjects(own.unknown), m.name)
		}
	}
	require.Greater(t, places, 60)
	for node, subject := range map[string]string{
		`{"NoSuchNode":{}}`: "NoSuchNode", `{"SelectStmt":{"noSuchField":1}}`: "SelectStmt.noSuchField", `{"FuncExpr":{}}`: "FuncExpr", `{}`: "stmt.{}", `{"SelectStmt":{"whereClause":{"OpExpr":{"opno":1}}}}`: "OpExpr",
	} {
		own := tree{json: []byte(`{"version":160001,"stmts":[{"stmt":` + node + `}]}`)}
		new(treeReader).read(s, &own)
		require.Equal(t, []string{subject}, subjects(own.unknown), node)
	}
}

func subjects(list []notice) (all []string) {
	for _, n := range list {
		all = append(all, n.subject)
	}
	return all
}

func TestEveryHandlerBelongsToANode(t *testing.T) {
	s := newTestSchema(t)
	for name := range handlers {
		id, ok := s.nodes.find([]byte(name))
		require.True(t, ok, name)
		require.True(t, s.messages[id].known, "%s has a handler but counts as unknown", name)
	}
}

// Statements of the grammar are the nodes named ...Stmt, but for five that
// cannot stand at the top.
func TestEveryStatementKindHasARow(t *testing.T) {
	kinds := pg.File_pg_query_proto.Messages().ByName("Node").Fields()
	never := map[string]bool{"RawStmt": true, "SetOperationStmt": true, "ReturnStmt": true, "PLAssignStmt": true, "ReplicaIdentityStmt": true}
	n := 0
	for i := range kinds.Len() {
		name := kinds.Get(i).JSONName()
		if !strings.HasSuffix(name, "Stmt") || never[name] {
			continue
		}
		require.Contains(t, statements, name)
		n++
	}
	require.Equal(t, 112, n)
	require.Len(t, statements, n)
}

func TestADamagedTableIsAnError(t *testing.T) {
	_, err := newSchema("message\tfield\tholds\taction\nA\tb\tstring\tdance\n", enumsTSV)
	require.ErrorContains(t, err, `A.b: no action "dance"`)
	_, err = newSchema("message\tfield\tholds\taction\nA\tb\n", enumsTSV)
	require.ErrorContains(t, err, "line 2 has 2 columns")
	_, err = newSchema("message\tfield\tholds\taction\nA\tb\tenum Nothing\tread\n", enumsTSV)
	require.ErrorContains(t, err, "no enum Nothing")
	_, err = parseVersions("15,99")
	require.Error(t, err)
}

func TestTheKeyTableFindsItsKeysAndNoOthers(t *testing.T) {
	keys := map[string]uint16{"a": 1, "ab": 2, "selectStmt": 3, "selectStmu": 4, "stmt_location": 5, "stmt_len": 6}
	table := newKeyTable(keys)
	for k, v := range keys {
		got, ok := table.find([]byte(k))
		require.True(t, ok)
		require.Equal(t, v, got)
	}
	for _, k := range []string{"", "b", "abc", "selectStmv", "stmt_locatioN"} {
		_, ok := table.find([]byte(k))
		require.False(t, ok, k)
	}
}
