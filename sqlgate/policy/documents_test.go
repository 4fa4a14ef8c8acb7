package policy

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTheBaselineIsReadable(t *testing.T) {
	cases, findings := ParseCorpus(baselineDocument)
	require.Empty(t, findings)
	require.GreaterOrEqual(t, len(cases), 90)
	seen := map[string]bool{}
	for _, c := range cases {
		require.Equal(t, Allow, c.Expect.Not, c.Name)
		require.Equal(t, CaseContext{Env: "prod", Mode: ModeEnforce, Channel: ChannelHTTP}, c.Context, c.Name)
		require.False(t, seen[c.Name] || seen[c.SQL], c.Name)
		seen[c.Name], seen[c.SQL] = true, true
	}
	given, hash := Baseline()
	require.Equal(t, cases, given)
	require.Equal(t, Digest(baselineDocument), hash)
}

// factsOfOrders are the facts of the statements in the embedded documents, as
// the classification page gives them.
var factsOfOrders = func() map[string]Facts {
	write := func(kind, table, where string, signals ...string) Facts {
		f := Facts{QueryType: kind, QueryTypes: []string{kind}, Class: "write", TablesWritten: []string{table}, ColumnsWritten: []string{table + ".*"}, RiskSignals: signals}
		if where != "" {
			f.Where = []string{where}
		}
		return f
	}
	other := func(kind, class, table string, signals ...string) Facts {
		f := Facts{QueryType: kind, QueryTypes: []string{kind}, Class: class, RiskSignals: signals}
		if table != "" {
			f.TablesWritten = []string{table}
		}
		return f
	}
	read := func(table string) Facts {
		return Facts{QueryType: "SELECT", QueryTypes: []string{"SELECT"}, Class: "read", SafeRead: true, TablesRead: []string{table}}
	}
	cte := write("DELETE", "public.orders", "key_equality", "data_modifying_cte")
	cte.QueryType, cte.QueryTypes = "SELECT", []string{"DELETE", "SELECT"}
	upsert := func(where string, signals ...string) Facts {
		f := write("INSERT", "public.orders", where, signals...)
		f.QueryTypes = []string{"INSERT", "UPDATE"}
		return f
	}
	beyond := func(f Facts, tables ...string) Facts {
		f.TablesWritten = tables
		return f
	}
	question := func(table string, functions []string, signals ...string) Facts {
		return Facts{QueryType: "SELECT", QueryTypes: []string{"SELECT"}, Class: "write", TablesRead: []string{table}, Functions: functions, RiskSignals: signals}
	}
	return map[string]Facts{
		"SELECT pg_catalog.pg_get_constraintdef(oid, true) FROM pg_catalog.pg_constraint WHERE conrelid IN (SELECT pg_catalog.pg_partition_ancestors('16390'))": question("pg_catalog.pg_constraint", []string{"pg_get_constraintdef", "pg_partition_ancestors"}, "volatile_function"),
		"SELECT pg_catalog.pg_table_size(oid), public.f(oid) FROM pg_catalog.pg_class":                                                                          question("pg_catalog.pg_class", []string{"pg_table_size", "public.f"}, "unknown_function", "volatile_function"),
		"SELECT id, total FROM public.orders WHERE id = 7":                                                                                                      read("public.orders"),
		"SELECT id, status FROM public.orders WHERE customer_id = 3":                                                                                            read("public.orders"),
		"INSERT INTO public.orders (id, total) VALUES (1, 10)":                                                                                                  write("INSERT", "public.orders", ""),
		"REFRESH MATERIALIZED VIEW public.totals":                                                                                                               write("REFRESH", "public.totals", ""),
		"INSERT INTO public.orders (customer_id, status) VALUES (3, 'new')":                                                                                     write("INSERT", "public.orders", ""),
		"INSERT INTO public.orders (id, total) VALUES ($1, $2) ON CONFLICT (id) DO UPDATE SET total = excluded.total":                                           upsert("key_equality"),
		"INSERT INTO public.orders (id, status) VALUES ($1, $2) ON CONFLICT (id) DO UPDATE SET status = excluded.status RETURNING id":                           upsert("key_equality"),
		"INSERT INTO public.orders SELECT id, 0 FROM public.orders ON CONFLICT (id) DO UPDATE SET total = 0":                                                    upsert("none", "write_without_where"),
		"INSERT INTO public.orders SELECT id, 'paid' FROM public.orders ON CONFLICT (id) DO UPDATE SET status = excluded.status":                                upsert("none", "write_without_where"),
		"INSERT INTO public.orders SELECT id, 'paid' FROM public.orders WHERE status = 'new' ON CONFLICT (id) DO UPDATE SET status = excluded.status":           upsert("present"),
		"ALTER TABLE public.orders DROP COLUMN note CASCADE":                                                                                                    beyond(other("ALTER", "ddl", "", "cascade", "destructive_ddl"), "?.*", "public.orders"),
		"GRANT SELECT ON ALL TABLES IN SCHEMA public TO reporting":                                                                                              other("GRANT", "dcl", "public.*", "privilege_change"),
		"VACUUM": other("VACUUM", "maintenance", "?.*"),
		"UPDATE public.orders SET total = 0 WHERE id = 7":                                           write("UPDATE", "public.orders", "key_equality"),
		"UPDATE public.orders SET status = 'paid' WHERE id = 7":                                     write("UPDATE", "public.orders", "key_equality"),
		"UPDATE public.orders SET status = 'archived' WHERE status = 'paid'":                        write("UPDATE", "public.orders", "present"),
		"UPDATE public.orders SET total = 0":                                                        write("UPDATE", "public.orders", "none", "write_without_where"),
		"UPDATE public.orders SET status = 'paid'":                                                  write("UPDATE", "public.orders", "none", "write_without_where"),
		"UPDATE public.customers SET email = 'a@example.com' WHERE id = 3":                          write("UPDATE", "public.customers", "key_equality"),
		"UPDATE pg_catalog.pg_class SET relname = 'x' WHERE oid = 1":                                write("UPDATE", "pg_catalog.pg_class", "present", "system_catalog_write"),
		"DELETE FROM pg_catalog.pg_class WHERE oid = 1":                                             write("DELETE", "pg_catalog.pg_class", "present", "system_catalog_write"),
		"DELETE FROM public.orders":                                                                 write("DELETE", "public.orders", "none", "write_without_where"),
		"DELETE FROM public.orders WHERE 1 = 1":                                                     write("DELETE", "public.orders", "tautology", "tautological_where"),
		"DELETE FROM public.orders WHERE id = 7":                                                    write("DELETE", "public.orders", "key_equality"),
		"WITH d AS (DELETE FROM public.orders WHERE id = 7 RETURNING id) SELECT id FROM d":          cte,
		"CREATE TABLE public.notes (id bigint PRIMARY KEY, body text)":                              other("CREATE", "ddl", "public.notes"),
		"ALTER TABLE public.orders ADD COLUMN note text":                                            other("ALTER", "ddl", "public.orders"),
		"DROP TABLE public.orders":                                                                  other("DROP", "ddl", "public.orders", "destructive_ddl"),
		"TRUNCATE public.orders":                                                                    other("TRUNCATE", "ddl", "public.orders", "destructive_ddl"),
		"GRANT SELECT ON public.orders TO reporting":                                                other("GRANT", "dcl", "public.orders", "privilege_change"),
		"GRANT USAGE ON SCHEMA billing TO reporting":                                                other("GRANT", "dcl", "billing.*", "privilege_change"),
		"GRANT admin TO app":                                                                        other("GRANT", "dcl", "", "privilege_change"),
		"VACUUM public.orders":                                                                      other("VACUUM", "maintenance", "public.orders"),
		"NOTIFY orders":                                                                             other("NOTIFY", "session", "", "session_change"),
		"DO $$ BEGIN DELETE FROM public.orders; END $$":                                             other("DO", "procedural", "", "opaque_code"),
		"INSERT INTO public.orders (customer_id, status) VALUES (nextval('payroll_id_seq'), 'new')": {QueryType: "INSERT", QueryTypes: []string{"INSERT"}, Class: "write", TablesWritten: []string{"public.orders"}, Functions: []string{"nextval"}, RiskSignals: []string{"sequence_change"}},
		"SELECT setval('public.orders_id_seq', 1)":                                                  {QueryType: "SELECT", QueryTypes: []string{"SELECT"}, Class: "write", Functions: []string{"setval"}, RiskSignals: []string{"sequence_change"}},
		"SELECT pg_is_in_recovery()":                                                                {QueryType: "SELECT", QueryTypes: []string{"SELECT"}, Class: "write", Functions: []string{"pg_is_in_recovery"}, RiskSignals: []string{"volatile_function"}},
		"SELECT random()":                                                                           {QueryType: "SELECT", QueryTypes: []string{"SELECT"}, Class: "write", Functions: []string{"random"}, RiskSignals: []string{"volatile_function"}},
		"SELECT pg_size_pretty(pg_database_size(current_database()))":                               {QueryType: "SELECT", QueryTypes: []string{"SELECT"}, Class: "write", Functions: []string{"pg_size_pretty", "pg_database_size", "current_database"}, RiskSignals: []string{"volatile_function"}},
		"SELECT table_name, pg_size_pretty(pg_total_relation_size(quote_ident(table_name))) FROM information_schema.tables WHERE table_schema = 'public'": {QueryType: "SELECT", QueryTypes: []string{"SELECT"}, Class: "write", TablesRead: []string{"information_schema.tables"},
			Functions: []string{"pg_size_pretty", "pg_total_relation_size", "quote_ident"}, RiskSignals: []string{"volatile_function"}},
		"SELECT id, gen_random_uuid() FROM public.orders":                                                               {QueryType: "SELECT", QueryTypes: []string{"SELECT"}, Class: "write", TablesRead: []string{"public.orders"}, Functions: []string{"gen_random_uuid"}, RiskSignals: []string{"volatile_function"}},
		"INSERT INTO public.orders (customer_id, status) SELECT customer_id, 'new' FROM public.old_orders WHERE id = 7": {QueryType: "INSERT", QueryTypes: []string{"INSERT", "SELECT"}, Class: "write", TablesRead: []string{"public.old_orders"}, TablesWritten: []string{"public.orders"}},
	}
}()

func TestTheEmbeddedDocumentsAreValidWithoutAWarning(t *testing.T) {
	for name, document := range map[string][]byte{"starting": Starting(""), "sample": Sample()} {
		t.Run(name, func(t *testing.T) {
			p, report := Validate(document, Options{}, nil, passing(factsOfOrders))
			require.NoError(t, report.Err())
			require.Empty(t, report.Warnings)
			require.Equal(t, report.Tests.Cases, report.Tests.Passed)
			require.NotZero(t, report.Tests.Cases)
			require.Equal(t, p.Hash(), Digest(document))
		})
	}
}

func TestTheStartingPolicyTakesAName(t *testing.T) {
	require.Equal(t, "core-write-gate@1.0.0", load(t, string(Starting(""))).Version())
	require.Equal(t, "billing@1.0.0", load(t, string(Starting("billing"))).Version())
	_, report := Load(Starting("Not A Name"), Options{})
	require.Len(t, withCode(report, codeBadName), 1)
}

func TestTheStartingPolicyDecidesAsTheClassificationPageSays(t *testing.T) {
	p := load(t, string(Starting("")))
	for _, c := range []struct {
		what  string
		facts Facts
		want  Decision
	}{
		{"a table from a query", Facts{Class: "ddl", QueryTypes: []string{"CREATE_TABLE_AS", "SELECT"}, TablesWritten: []string{"public.n"}, RiskSignals: []string{"select_into"}}, RequireApproval},
		{"a schema", Facts{Class: "ddl", QueryTypes: []string{"CREATE"}}, RequireApproval},
		{"a row security policy", Facts{Class: "ddl", QueryTypes: []string{"CREATE"}, TablesWritten: []string{"public.t"}, RiskSignals: []string{"privilege_change"}}, RequireApproval},
		{"an altered function", Facts{Class: "ddl", QueryTypes: []string{"ALTER"}, RiskSignals: []string{"privilege_change"}}, Block},
		{"a function", Facts{Class: "ddl", QueryTypes: []string{"CREATE_FUNCTION"}, RiskSignals: []string{"opaque_code"}}, Block},
		{"a trigger", Facts{Class: "ddl", QueryTypes: []string{"CREATE"}, TablesWritten: []string{"public.t"}, RiskSignals: []string{"opaque_code"}}, Block},
		{"another owner", Facts{Class: "dcl", QueryTypes: []string{"ALTER_OWNER"}, TablesWritten: []string{"public.t"}, RiskSignals: []string{"privilege_change"}}, Block},
		{"a role", Facts{Class: "dcl", QueryTypes: []string{"CREATE_ROLE"}, RiskSignals: []string{"privilege_change"}}, Block},
		{"a refreshed view", Facts{Class: "write", QueryTypes: []string{"REFRESH"}, TablesWritten: []string{"public.v"}}, RequireApproval},
		{"an analysed insert", Facts{Class: "write", QueryTypes: []string{"EXPLAIN", "INSERT"}, TablesWritten: []string{"public.t"}, RiskSignals: []string{"explain_analyze"}}, Block},
		{"a copy out", Facts{Class: "read", QueryTypes: []string{"COPY_TO"}, RiskSignals: []string{"bulk_copy"}}, Block},
		{"a copy in", Facts{Class: "write", QueryTypes: []string{"COPY_FROM"}, RiskSignals: []string{"bulk_copy"}}, Block},
		{"a lock", Facts{Class: "utility", QueryTypes: []string{"LOCK"}, RiskSignals: []string{"row_locking"}}, Block},
		{"a locking read", Facts{Class: "write", QueryTypes: []string{"SELECT"}, RiskSignals: []string{"row_locking"}}, Block},
		{"a transaction", Facts{Class: "tcl", QueryTypes: []string{"BEGIN"}, RiskSignals: []string{"transaction_control"}}, Block},
		{"a setting", Facts{Class: "session", QueryTypes: []string{"SET"}, RiskSignals: []string{"session_change"}}, Block},
		{"a merge", Facts{Class: "write", QueryTypes: []string{"MERGE"}, Where: []string{"present"}, TablesWritten: []string{"public.t"}}, RequireApproval},
		{"a merge on anything", Facts{Class: "write", QueryTypes: []string{"MERGE"}, Where: []string{"tautology"}, RiskSignals: []string{"tautological_where"}}, Block},
		{"upkeep of all", Facts{Class: "maintenance", QueryTypes: []string{"REINDEX"}}, RequireApproval},
		{"what nobody knows", Facts{Class: "unknown", QueryTypes: []string{"UNKNOWN"}, RiskSignals: []string{"unknown_node"}}, Block},
	} {
		require.Equal(t, c.want, p.Decide(&c.facts).Decision, c.what)
	}
	refresh := p.Decide(&Facts{Class: "write", QueryTypes: []string{"REFRESH"}, TablesWritten: []string{"public.v"}})
	require.Nil(t, refresh.Approval.MaxRows, "the rows of a refresh cannot be counted, so with a limit it could never run")
}
