package eventlog

import (
	"context"
	"fmt"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"writegate/eventlog/checkpoint"
	"writegate/eventlog/frame/frametest"
)

func mustReceipt(t testing.TB, c Committed) string {
	t.Helper()
	text, err := c.Receipt()
	require.NoError(t, err)
	require.Equal(t, text != "", c.HasReceipt())
	return text
}

func TestAReceiptVouchesForTheLastEventOfItsGroup(t *testing.T) {
	l, _ := mustOpen(t, memOptions(newMem(t)))
	one, three := mustAppend(t, l, "a"), mustAppend(t, l, "b", "c", "d")
	a := requireReceipt(t, l, mustReceipt(t, one))
	require.Equal(t, checkpoint.Anchor{LogID: l.LogID(), Seq: 1, Hash: one.Hashes[0], Last: 1, Time: testTime}, a)
	require.EqualValues(t, 4, requireReceipt(t, l, mustReceipt(t, three)).Seq)
	require.Equal(t, mustReceipt(t, three), mustReceipt(t, three), "it is the same however often it is asked for")
}

// Groups that share a batch have receipts of their own under one signature.
func TestEachGroupOfABatchHasItsReceipt(t *testing.T) {
	l, k, _ := guarded(t, nil)
	held, release := k.holdOn(frametest.Datasync)
	defer release()
	first := appendLater(l, group("first"))
	<-held
	var together sync.WaitGroup
	receipts := make([]string, 40)
	for i := range receipts {
		together.Go(func() {
			c, err := l.Append(context.Background(), group(numbered(fmt.Sprint(i, "."), i%3+1)...))
			if err == nil {
				receipts[i], err = c.Receipt()
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	require.Eventually(t, func() bool { return queued(l) == len(receipts) }, time.Minute, time.Millisecond)
	release()
	require.NoError(t, <-first)
	together.Wait()
	seqs, signatures := map[uint64]bool{}, map[[64]byte]bool{}
	for _, text := range receipts {
		a := requireReceipt(t, l, text)
		require.False(t, seqs[a.Seq], "two groups have the receipt of one event")
		require.Equal(t, l.Head().Seq, a.Last)
		r, err := checkpoint.ParseReceipt(text)
		require.NoError(t, err)
		seqs[a.Seq], signatures[r.Signature] = true, true
	}
	require.Len(t, signatures, 1, "a batch is signed once")
}

func TestWhatIsOnlyWrittenHasNoReceipt(t *testing.T) {
	l, k, _ := guarded(t, nil)
	held, release := k.holdOn(frametest.Datasync)
	defer release()
	early, err := l.Append(context.Background(), Group{Drafts: group("early").Drafts, Ack: Written})
	require.NoError(t, err)
	<-held
	require.Empty(t, mustReceipt(t, early), "its sync has not returned")
	release()
	for range 100 { // a waiter is used again, and must not hand on what it held
		requireReceipt(t, l, mustReceipt(t, mustAppend(t, l, "durable")))
		written, err := l.Append(context.Background(), Group{Drafts: group("w").Drafts, Ack: Written})
		require.NoError(t, err)
		require.False(t, written.HasReceipt())
	}
}

func TestAFailedSyncGivesNoReceipt(t *testing.T) {
	l, k, _ := guarded(t, nil)
	mustAppend(t, l, "a")
	k.failOn(frametest.Datasync, syscall.EIO)
	c, err := l.Append(context.Background(), group("b"))
	require.ErrorIs(t, err, ErrOutcomeUnknown)
	require.False(t, c.HasReceipt())
}

func TestReceiptsGoOnThroughSegmentsAndStarts(t *testing.T) {
	mem := newMem(t)
	var kept []string
	l, _ := mustOpen(t, rotating(mem))
	for l.Head().Segment < 3 {
		kept = append(kept, mustReceipt(t, mustAppend(t, l, "a", "b", "c")))
		settled(l)
	}
	mustClose(t, l)
	l, _ = mustOpen(t, rotating(mem))
	kept = append(kept, mustReceipt(t, mustAppend(t, l, "after")))
	for _, text := range kept {
		requireReceipt(t, l, text)
	}
}

func TestALogWithoutAKeyGivesNoReceiptsAndPaysNothing(t *testing.T) {
	for name, set := range map[string]func(*Options){
		"no key":                 func(o *Options) { o.SigningKey = nil },
		"nothing would be there": func(o *Options) { o.Fsync = FsyncOff },
	} {
		t.Run(name, func(t *testing.T) {
			l, _, _ := guarded(t, set)
			require.Empty(t, mustReceipt(t, mustAppend(t, l, "a")))
			b := &batch{groups: []placed{{first: 1, hashes: make([][32]byte, 3)}}}
			require.Zero(t, testing.AllocsPerRun(100, func() {
				a, err := l.unsigned(b)
				if err != nil || signBeside(a, l.o.Now) != nil {
					t.Error("it signs")
				}
			}))
		})
	}
}

func TestANewLogNamesItsKey(t *testing.T) {
	o := memOptions(newMem(t))
	l, _ := mustOpen(t, o)
	vkey, err := testKey.Public().VKey("test")
	require.NoError(t, err)
	require.Equal(t, vkey, l.Header().Signer)

	o = memOptions(newMem(t))
	o.Origin = "two words"
	_, _, err = Open(context.Background(), o)
	require.ErrorIs(t, err, ErrInvalidOptions)
	require.Equal(t, ExitUnsafe, ExitCode(err))
}

// A receipt is only as good as its log's key: another start may use another.
func TestEachStartSignsWithItsOwnKey(t *testing.T) {
	o := memOptions(newMem(t))
	l, _ := mustOpen(t, o)
	mustAppend(t, l, "a")
	mustClose(t, l)
	other, err := checkpoint.NewPrivateKey()
	require.NoError(t, err)
	o.SigningKey = other
	l, _ = mustOpen(t, o)
	r, err := checkpoint.ParseReceipt(mustReceipt(t, mustAppend(t, l, "b")))
	require.NoError(t, err)
	_, err = r.Check(testKey.Public())
	require.ErrorIs(t, err, checkpoint.ErrUnknownKey)
	_, err = r.Check(testKey.Public(), other.Public())
	require.NoError(t, err)
}

// BenchmarkAppendSigned is the price of signing: durable events a second with
// receipts made and rendered, against the same log without a key.
func BenchmarkAppendSigned(b *testing.B) {
	for _, clients := range []int{1, 16, 64, 256} {
		b.Run(fmt.Sprint(clients, "-clients"), func(b *testing.B) {
			d := benchDraft(b)
			signed, plain := benchLogWith(b, testKey), benchLogWith(b, nil)
			var ours, theirs []float64
			for range benchRounds {
				ours = append(ours, rate(b, clients, receiptCall(signed, d)))
				theirs = append(theirs, rate(b, clients, receiptCall(plain, d)))
			}
			report(b, "events/s", ours, theirs)
		})
	}
}
