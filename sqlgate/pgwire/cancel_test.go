package pgwire

import (
	"context"
	"encoding/binary"
	"log/slog"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"writegate/fixtures/manualclock"
	"writegate/sqlgate"
)

// A keyRing is a registry whose connections have no gate behind them: what a
// request that is forwarded does is tested where there is one, in cmd/gate. judge
// says what would be forwarded.
type keyRing struct {
	*registry
	*manualclock.Clock
	door *door
}

func newKeyRing(t *testing.T) *keyRing {
	k := &keyRing{Clock: manualclock.At(time.Unix(1_000_000, 0)), door: &door{t: t}}
	k.registry = newRegistry(k.Clock.Now, k.door, slog.New(slog.DiscardHandler))
	t.Cleanup(k.registry.close)
	return k
}

var (
	home  = netip.MustParseAddr("192.0.2.1")
	other = netip.MustParseAddr("192.0.2.2")
)

// connection adds a connection from home.
func (k *keyRing) connection(version uint32) cancelKey {
	return k.add(&conn{addr: home, version: version, id: "session"})
}

// cause is why a request is rejected; "" is one that is forwarded.
func (k *keyRing) cause(key cancelKey, from netip.Addr) string {
	_, cause, _ := k.judge(key, from, false)
	return cause
}

func TestAKeyIsOfTheLengthOfItsProtocol(t *testing.T) {
	k := newKeyRing(t)
	require.Len(t, k.connection(version30).secret, 4)
	require.Len(t, k.connection(3<<16|1).secret, 4)
	require.Len(t, k.connection(version32).secret, 32)
	pids := map[uint32]bool{}
	for range 1000 {
		key := k.connection(version30)
		require.Positive(t, int32(key.pid))
		require.False(t, pids[key.pid])
		pids[key.pid] = true
	}
}

func TestOnlyTheRightKeyFromTheRightAddressIsForwarded(t *testing.T) {
	k := newKeyRing(t)
	key, second := k.connection(version30), k.connection(version32)
	require.Equal(t, CancelOtherAddress, k.cause(key, other))
	require.Equal(t, CancelUnknownKey, k.cause(cancelKey{key.pid, second.secret}, home))
	require.Equal(t, CancelUnknownKey, k.cause(cancelKey{key.pid + 1, key.secret}, home))
	require.Equal(t, CancelUnknownKey, k.cause(cancelKey{key.pid, key.secret[:3]}, home))
	require.Equal(t, CancelUnknownKey, k.cause(cancelKey{key.pid, append(key.secret[:4:4], 0)}, home))
	require.Equal(t, CancelUnknownKey, k.cause(cancelKey{0, make([]byte, secretLen32)}, home), "what stands in for a key that is not there fits nobody")
	require.Empty(t, k.cause(key, home), "what was rejected does not make the right one a repetition")
	require.Empty(t, k.cause(second, home))
	k.remove(key.pid)
	require.Equal(t, CancelUnknownKey, k.cause(key, home))
}

func TestAKeyLivesForADay(t *testing.T) {
	k := newKeyRing(t)
	key := k.connection(version30)
	k.Advance(cancelKeyLife - time.Second)
	require.Empty(t, k.cause(key, home))
	k.Advance(time.Second)
	require.Equal(t, CancelExpiredKey, k.cause(key, home))
}

func TestARepetitionIsRejectedForAQuarterOfASecond(t *testing.T) {
	k := newKeyRing(t)
	key, second := k.connection(version30), k.connection(version30)
	require.Empty(t, k.cause(key, home))
	require.Empty(t, k.cause(second, home), "another key is no repetition")
	k.Advance(cancelDuplicate - time.Millisecond)
	require.Equal(t, CancelDuplicate, k.cause(key, home))
	k.Advance(time.Millisecond)
	require.Empty(t, k.cause(key, home), "counted from the one that was forwarded")
}

func TestAnAddressHasSoManyRequestsASecond(t *testing.T) {
	k := newKeyRing(t)
	key := k.connection(version30)
	for range cancelsPerSecond {
		require.Equal(t, CancelUnknownKey, k.cause(cancelKey{}, home))
	}
	require.Equal(t, CancelRate, k.cause(key, home), "the right key too")
	require.Equal(t, CancelOtherAddress, k.cause(key, other), "another address has its own count")
	k.Advance(time.Second)
	require.Empty(t, k.cause(key, home))
}

func TestAFloodIsWrittenAsACount(t *testing.T) {
	k := newKeyRing(t)
	const flood = 300
	for range flood {
		k.request(context.Background(), cancelKey{secret: make([]byte, 4)}, home, false)
	}
	k.close()
	count := map[string]int{}
	for _, what := range k.door.written() {
		count[what]++
	}
	require.Equal(t, cancelsWritten, count["received"])
	require.Equal(t, flood, count[CancelUnknownKey]+count[CancelRate])
	require.Equal(t, int64(flood), k.requests.Load())
}

func TestCancelsOfWhatDoesNotRunAreWrittenAsACount(t *testing.T) {
	k := newKeyRing(t)
	const idle = 50
	for range idle {
		key := k.add(&conn{addr: home, version: version30, id: "session", wire: &sqlgate.Wire{}})
		k.request(context.Background(), key, home, false)
	}
	k.close()
	count := map[string]int{}
	for _, what := range k.door.written() {
		count[what]++
	}
	require.Equal(t, map[string]int{"received": cancelsWritten, sqlgate.CancelNothingRuns: idle}, count)
}

// Guesses at a key don't go under other rejections of the same second.
func TestAFloodIsCountedByItsCauses(t *testing.T) {
	k := newKeyRing(t)
	const each = 50
	for range each {
		key := k.add(&conn{addr: home, version: version30, id: "session", wire: &sqlgate.Wire{}})
		k.request(context.Background(), cancelKey{key.pid, make([]byte, secretLen32)}, home, false)
		k.request(context.Background(), key, home, false)
	}
	k.close()
	count := map[string]int{}
	for _, what := range k.door.written() {
		count[what]++
	}
	require.Equal(t, map[string]int{"received": cancelsWritten, sqlgate.CancelNothingRuns: each, CancelUnknownKey: each}, count)
}

func TestAFloodFromEverywhereStaysWithinItsMemoryAndTheLogWithinItsOwn(t *testing.T) {
	k := newKeyRing(t)
	const addresses = 2 * cancelAddresses
	for i := range uint32(addresses) {
		addr := netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, i)))
		for range cancelsWritten + 1 {
			k.request(context.Background(), cancelKey{secret: make([]byte, 4)}, addr, false)
		}
	}
	require.Equal(t, cancelAddresses, k.addresses.Len())
	k.close()
	count := map[string]int{}
	for _, what := range k.door.written() {
		count[what]++
	}
	require.Equal(t, cancelsWrittenAll, count["received"])
	require.Equal(t, addresses*(cancelsWritten+1), count[CancelUnknownKey], "each is counted")
}

func TestCancelRequestsOfLengthsThatCannotBe(t *testing.T) {
	d := openDoor(t, nil)
	for n := range 8 {
		require.Empty(t, d.send(request(codeCancel, make([]byte, n)...)), "a key of %d bytes", n-4)
	}
	require.Empty(t, d.send(request(codeCancel, make([]byte, 4+maxCancelKey+1)...)))
	require.Empty(t, d.written())
	require.Empty(t, d.send(request(codeCancel, make([]byte, 4+maxCancelKey)...)))
	require.Equal(t, []string{"received", CancelUnknownKey}, d.written())
}
