package main

// tourText is printed by `gate demo`; {gate} is the address and {dir} the
// folder. The README shows the same commands, and a test runs both.
const tourText = `
The gate is up at {gate}. Open another terminal in this folder and paste:

  GATE={gate}
  TOKEN=$(cat {dir}/operator-token)
  ask() { curl -s "$GATE/query" --json "{\"actor\":\"ana\",\"app\":\"shop\",\"tenant\":\"acme\",\"role\":\"clerk\",\"host\":\"desk-1\",\"env\":\"prod\",\"sql\":\"$1\"${2:+,\"approval_id\":\"$2\"}}"; }

A read is allowed and returns rows:

  ask 'SELECT id, status FROM orders ORDER BY id LIMIT 3'

A write by key is allowed for the shop:

  ask "UPDATE orders SET status = 'paid' WHERE id = 1"

A dangerous one is blocked before it reaches the database:

  ask 'DELETE FROM orders'

A delete by key waits for a person, is approved, and runs when it is sent again:

  ANSWER=$(ask 'DELETE FROM orders WHERE id = 2'); echo "$ANSWER"
  APPROVAL=$(echo "$ANSWER" | grep -o 'apr_[0-9a-f-]*' | head -n 1)
  curl -s -X POST "$GATE/approvals/$APPROVAL/resolve" -H "Authorization: Bearer $TOKEN" --json '{"decision":"approve","note":"asked for by the customer"}'
  ask 'DELETE FROM orders WHERE id = 2' "$APPROVAL"

All of it is evidence, in a hash-linked log that verifies without the service:

  curl -s "$GATE/audit?limit=5"
  curl -s "$GATE/evidence/verify"
  bin/logverify wal {dir}/audit.wal

Stop the gate with Ctrl-C.
`
