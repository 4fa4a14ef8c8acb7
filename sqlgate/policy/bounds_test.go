package policy_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"writegate/sqlgate/policy"
)

// Under the policies that come with the program a statement that reaches every row is
// blocked, however its condition is written, and one that locks rows of other tables
// is allowed by no rule about writes.
func TestAConditionThatBoundsNothingIsBlocked(t *testing.T) {
	classify := classifier(t)
	for name, document := range map[string][]byte{"sample": policy.Sample(), "starting": policy.Starting("")} {
		p, report := policy.Load(document, policy.Options{})
		require.NoError(t, report.Err())
		for _, sql := range []string{
			"UPDATE orders SET status = 'x' WHERE id = orders.id", "UPDATE orders o SET status = 'x' WHERE o.id = id", "DELETE FROM public.orders USING archive.orders WHERE archive.orders.id = 1",
			"UPDATE public.orders SET status = 'x' FROM archive.orders WHERE archive.orders.id = 1", "UPDATE orders SET status = 'x' WHERE EXISTS (SELECT id)", "UPDATE orders SET status = 'x' WHERE id = (SELECT id)",
			"UPDATE orders SET status = 'x' FROM orders o WHERE o.id = orders.id", "UPDATE orders SET status = 'x' WHERE id > 5 OR id < 7", "UPDATE orders SET status = 'x' WHERE coalesce(id, 0) = id",
			"INSERT INTO orders SELECT * FROM order_items ON CONFLICT (id) DO UPDATE SET status = 'x' WHERE orders.id = excluded.id", "MERGE INTO orders USING orders o ON o.id = orders.id WHEN MATCHED THEN DELETE",
			"SELECT * FROM customers FOR UPDATE",
		} {
			f, err := classify(sql)
			require.NoError(t, err, sql)
			f.App, f.Env, f.Mode = "shop", "prod", policy.ModeEnforce
			require.Equal(t, policy.Block, p.Decide(&f).Decision, "%s: %s", name, sql)
		}
	}
}
