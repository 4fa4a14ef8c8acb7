package policy_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"writegate/sqlgate/policy"
)

// What object-relational mappers send to write a row that may be there already
// stays as easy as an INSERT; an INSERT that rewrites a table is an UPDATE.
func TestTheSamplePolicyTellsAnUpsertOfRowsFromOneOfATable(t *testing.T) {
	classify := classifier(t)
	p, report := policy.Load(policy.Sample(), policy.Options{})
	require.NoError(t, report.Err())
	for sql, want := range map[string]policy.Decision{
		// ActiveRecord, Django, SQLAlchemy, GORM, Prisma, TypeORM and Sequelize, jOOQ
		`INSERT INTO "orders" ("id","status","created_at") VALUES (1, 'new', '2024-01-01'), (2, 'new', '2024-01-01') ON CONFLICT ("id") DO UPDATE SET status=excluded."status",updated_at=(CASE WHEN (orders.status IS NOT DISTINCT FROM excluded.status) THEN orders.updated_at ELSE CURRENT_TIMESTAMP END) RETURNING "id"`: policy.Allow,
		`INSERT INTO "orders" ("customer_id", "status") VALUES ($1, $2), ($3, $4) ON CONFLICT("id") DO UPDATE SET "status" = EXCLUDED."status"`:                                                                                                                                                                              policy.Allow,
		`INSERT INTO orders (id, status) VALUES ($1::INTEGER, $2::VARCHAR) ON CONFLICT (id) DO UPDATE SET status = $3::VARCHAR RETURNING orders.id`:                                                                                                                                                                          policy.Allow,
		`INSERT INTO orders (id, status) SELECT p0::INTEGER, p1::VARCHAR FROM (VALUES ($1, $2, 0), ($3, $4, 1)) AS imp_sen(p0, p1, sen_counter) ORDER BY sen_counter ON CONFLICT (id) DO UPDATE SET status = excluded.status RETURNING orders.id, orders.id AS id__1`:                                                        policy.Allow,
		`INSERT INTO "orders" ("status","id") VALUES ('a',1) ON CONFLICT ("id") DO UPDATE SET "status"="excluded"."status" RETURNING "id"`:                                                                                                                                                                                   policy.Allow,
		`INSERT INTO "public"."orders" ("id","status") VALUES ($1,$2) ON CONFLICT ("id") DO UPDATE SET "status" = $3 WHERE ("public"."orders"."id" = $4 AND 1=1) RETURNING "public"."orders"."id"`:                                                                                                                           policy.Allow,
		`INSERT INTO "orders"("id", "status") VALUES ($1, DEFAULT) ON CONFLICT ( "id" ) DO UPDATE SET "status" = EXCLUDED."status", "total" = now()`:                                                                                                                                                                         policy.Allow,
		`INSERT INTO orders (id, status) SELECT $1, $2 ON CONFLICT (id) DO UPDATE SET status = excluded.status`:                                                                                                                                                                                                              policy.Allow,
		`INSERT INTO orders (id, status) VALUES (1, 'x') ON CONFLICT DO NOTHING`:                                                                                                                                                                                                                                             policy.Allow,
		`INSERT INTO orders SELECT * FROM order_items`:                                                      policy.Allow,
		`INSERT INTO orders SELECT id, 0 FROM orders WHERE id = 7 ON CONFLICT (id) DO UPDATE SET total = 0`: policy.Allow,

		`INSERT INTO orders SELECT id, 0 FROM orders ON CONFLICT (id) DO UPDATE SET total = 0`:                                         policy.Block,
		`INSERT INTO orders TABLE order_items ON CONFLICT (id) DO UPDATE SET total = 0`:                                                policy.Block,
		`INSERT INTO orders SELECT id, 0 FROM orders WHERE id = id ON CONFLICT (id) DO UPDATE SET total = 0`:                           policy.Block,
		`WITH u AS (INSERT INTO orders SELECT id, 0 FROM orders ON CONFLICT (id) DO UPDATE SET total = 0 RETURNING 1) SELECT 1 FROM u`: policy.Block,
		`INSERT INTO orders SELECT id, 0 FROM orders WHERE id > 0 ON CONFLICT (id) DO UPDATE SET total = 0`:                            policy.RequireApproval,
		`INSERT INTO orders TABLE order_items ON CONFLICT (id) DO UPDATE SET total = 0 WHERE orders.total > 0`:                         policy.RequireApproval,
		`MERGE INTO orders USING order_items i ON true WHEN MATCHED THEN UPDATE SET total = 0`:                                         policy.Block,
	} {
		f, err := classify(sql)
		require.NoError(t, err, sql)
		f.App, f.Env, f.Mode = "shop", "prod", policy.ModeEnforce
		r := p.Decide(&f)
		require.Equal(t, want, r.Decision, "%s\n%+v", sql, r)
	}
}

// A rule that names INSERT alone admits no update, and one that speaks of
// UPDATE, DELETE or a column speaks of those in ON CONFLICT and MERGE.
func TestRulesSeeWhatAStatementHolds(t *testing.T) {
	classify := classifier(t)
	p, report := policy.Load([]byte(`
schema: gate.policy/v1
name: verbs
version: 1.0.0
facts: facts/v1
rules:
  - { id: inserts, decision: ALLOW, reason_code: inserts, match: { class: [write], query_types_only: [INSERT], functions_only: [] } }
  - { id: updates, decision: REQUIRE_APPROVAL, reason_code: updates, match: { query_types: [UPDATE] } }
  - { id: deletes, decision: REQUIRE_APPROVAL, reason_code: deletes, match: { query_types: [DELETE] } }
  - { id: unfiltered, decision: BLOCK, reason_code: unfiltered, match: { query_types: [UPDATE, DELETE], where: [none, tautology] } }
  - { id: secrets, decision: BLOCK, reason_code: secrets, match: { columns_written: [public.t.secret] } }
`), policy.Options{})
	require.NoError(t, report.Err())
	for sql, matched := range map[string][]string{
		"INSERT INTO t (id) VALUES (1)":                                                       {"inserts"},
		"INSERT INTO t (id) VALUES (1) ON CONFLICT DO NOTHING":                                {"inserts"},
		"INSERT INTO t (id) VALUES (1) ON CONFLICT (id) DO UPDATE SET a = 1":                  {"updates"},
		"INSERT INTO t (id) TABLE u ON CONFLICT (id) DO UPDATE SET a = 1":                     {"updates", "unfiltered"},
		"INSERT INTO t (id) TABLE u ON CONFLICT (id) DO UPDATE SET secret = 1 WHERE t.id = 1": {"updates", "secrets"},
		"MERGE INTO t USING u ON t.id = u.id WHEN NOT MATCHED THEN INSERT (a) VALUES (1)":     nil,
		"MERGE INTO t USING u ON t.id = u.id WHEN MATCHED THEN UPDATE SET a = 1":              {"updates"},
		"MERGE INTO t USING u ON t.id = u.id WHEN MATCHED THEN DELETE":                        {"deletes", "secrets"},
		"MERGE INTO t USING u ON true WHEN MATCHED THEN UPDATE SET a = 1":                     {"updates", "unfiltered"},
	} {
		f, err := classify(sql)
		require.NoError(t, err, sql)
		require.Equal(t, matched, p.Decide(&f).Matched, sql)
	}
}
