package checkpoint_test

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"writegate/eventlog/checkpoint"
)

// A client keeps the receipt of an answer, and holds the log against it later.
func ExampleReceipt_Check() {
	key, err := checkpoint.ParsePrivateKey([]byte(goldenPrivate))
	if err != nil {
		panic(err)
	}

	// The gate: a batch of three events becomes durable, the second one's
	// receipt goes out with the answer that reports it.
	a := checkpoint.NewAccumulator(goldenLog, key)
	for i, h := range history(1, 3) {
		if err := a.Add(uint64(41+i), h); err != nil {
			panic(err)
		}
	}
	made, err := a.Sign(time.Date(2025, 1, 1, 0, 0, 0, 0, time.UTC)).Receipt(42)
	if err != nil {
		panic(err)
	}
	header, err := made.Text()
	if err != nil {
		panic(err)
	}

	// The client, with the gate's public key.
	receipt, err := checkpoint.ParseReceipt(header)
	if err != nil {
		panic(err)
	}
	anchor, err := receipt.Check(key.Public())
	fmt.Println(err, "event", anchor.Seq, "of a log that reached", anchor.Last, "on", anchor.Time.Format(time.DateOnly))
	fmt.Printf("event_hash %x...\n", anchor.Hash[:4])

	// Output:
	// <nil> event 42 of a log that reached 43 on 2025-01-01
	// event_hash 532deabf...
}

// A signer goes on from its newest checkpoint, and does not sign a tree that
// was written anew.
func ExampleSigner_Sign() {
	key, err := checkpoint.ParsePrivateKey([]byte(goldenPrivate))
	if err != nil {
		panic(err)
	}
	signer, err := checkpoint.NewSigner("gate.example", key)
	if err != nil {
		panic(err)
	}
	hashes := new(checkpoint.Memory)
	tree, err := checkpoint.OpenTree(0, hashes)
	if err != nil {
		panic(err)
	}
	if err := tree.Append(hashes, history(1, 5)...); err != nil {
		panic(err)
	}
	newest, err := signer.Sign(hashes, tree.Size(), nil)
	if err != nil {
		panic(err)
	}
	fmt.Println(strings.Join(strings.SplitN(string(newest.Raw), "\n", 3)[:2], " "))

	forged := new(checkpoint.Memory)
	other, err := checkpoint.OpenTree(0, forged)
	if err != nil {
		panic(err)
	}
	if err := other.Append(forged, history(2, 9)...); err != nil {
		panic(err)
	}
	_, err = signer.Sign(forged, other.Size(), &newest.Checkpoint)
	fmt.Println(errors.Is(err, checkpoint.ErrRewritten))

	// Output:
	// gate.example 5
	// true
}
