package main

// tourText is printed by `gate demo`; {gate} is the address and {dir} the
// folder. The README shows the same commands, and a test runs both.
const tourText = `
The gate is up at {gate}. Open another terminal in this folder and paste:

  GATE={gate}
  export GATE_OPERATOR_TOKEN=$(cat {dir}/operator-token)
  ask() { bin/gate query "$@" --url "$GATE" --actor ana --app shop; }

A read is allowed and returns rows:

  ask 'SELECT id, status FROM orders ORDER BY id LIMIT 3'

A write by key is allowed for the shop:

  ask "UPDATE orders SET status = 'paid' WHERE id = 1"

A dangerous one is blocked before it reaches the database:

  ask 'DELETE FROM orders'

A delete by key waits for a person, is approved, and runs when it is sent again:

  ask 'DELETE FROM orders WHERE id = 2'
  APPROVAL=$(bin/gate approvals list --url "$GATE" --json | grep -o 'apr_[0-9a-f-]*' | head -n 1)
  bin/gate approvals approve "$APPROVAL" --yes --note 'asked for by the customer' --url "$GATE"
  ask 'DELETE FROM orders WHERE id = 2' --approval-id "$APPROVAL"

All of it is evidence, in a hash-linked log that verifies without the service:

  bin/gate audit search --limit 5 --url "$GATE"
  curl -s "$GATE/evidence/verify"
  bin/logverify wal {dir}/audit.wal

Stop the gate with Ctrl-C.
`
