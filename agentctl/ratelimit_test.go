package agentctl

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

var noon = time.Date(2026, 1, 31, 12, 0, 30, 0, time.UTC)

// No 3600 seconds ever hold more than the limit, whatever the schedule and
// however many ask at once, and a limiter that is filled again from its minutes
// admits no more than the old one.
func TestNoHourHoldsMoreThanTheLimit(t *testing.T) {
	gaps := rapid.OneOf(rapid.IntRange(0, 600_000), rapid.IntRange(3_530_000, 3_610_000), rapid.SampledFrom([]int{1, 29_999, 59_999})) // ms: about an hour is where it matters
	rapid.Check(t, func(t *rapid.T) {
		l, now := newLimiter(), noon
		admitted, byMinute := map[string][]time.Time{}, map[string]map[int64]int{"key_1": {}, "tok_1": {}}
		for range rapid.IntRange(1, 40).Draw(t, "bursts") {
			now = now.Add(time.Duration(gaps.Draw(t, "gap")) * time.Millisecond)
			if rapid.IntRange(0, 9).Draw(t, "restart") == 0 {
				l = newLimiter()
				for id, minutes := range byMinute {
					for minute, n := range minutes {
						l.restore(id, time.Unix(minute*60, 0), now, n)
					}
				}
			}
			ids := rapid.SampledFrom([][]string{{"key_1"}, {"tok_1"}, {"key_1", "tok_1"}}).Draw(t, "credentials")
			n := burst(l, ids, now, rapid.IntRange(1, 8).Draw(t, "clients"), rapid.IntRange(1, 150).Draw(t, "each"))
			for _, id := range ids {
				byMinute[id][minuteOf(now)] += n
				for range n {
					admitted[id] = append(admitted[id], now)
				}
			}
		}
		for _, times := range admitted {
			first := 0
			for i, at := range times {
				for at.Sub(times[first]) >= WindowSeconds*time.Second {
					first++
				}
				require.LessOrEqual(t, i-first+1, RequestLimit)
			}
		}
	})
}

// burst asks from many goroutines at once, and tells how often it was admitted.
func burst(l *limiter, ids []string, now time.Time, clients, each int) int {
	var wait sync.WaitGroup
	var n atomic.Int64
	for range clients {
		wait.Go(func() {
			for range each {
				if _, ok := l.admit(ids, now); ok {
					n.Add(1)
				}
			}
		})
	}
	wait.Wait()
	return int(n.Load())
}

func TestOfManyAtOnceOneTakesTheLastPlace(t *testing.T) {
	l := newLimiter()
	for range RequestLimit - 1 {
		_, ok := l.admit([]string{"key_1", "tok_1"}, noon)
		require.True(t, ok)
	}
	require.Equal(t, 1, burst(l, []string{"key_1"}, noon, 50, 1))
}

func TestWithTwoCredentialsBothHaveToAdmitAndNeitherIsChargedOtherwise(t *testing.T) {
	l := newLimiter()
	for range RequestLimit {
		l.admit([]string{"key_1"}, noon)
	}
	q, ok := l.admit([]string{"key_1", "tok_1"}, noon)
	require.False(t, ok)
	require.Equal(t, "key_1", q.CredentialID)
	require.Equal(t, 3630, q.ResetSeconds, "the minute of noon leaves 61 minutes after it began")
	require.Equal(t, RequestLimit, l.look("tok_1", noon).Remaining)
	_, ok = l.admit([]string{"key_1"}, noon.Add(3629*time.Second))
	require.False(t, ok)
	_, ok = l.admit([]string{"key_1"}, noon.Add(3630*time.Second))
	require.True(t, ok)
}

func TestCredentialsHaveTheFormOfThePage(t *testing.T) {
	for _, good := range []struct{ prefix, text string }{{TokenPrefix, "wga_EXAMPLE000000000000000000000000G3ybm"}, {KeyPrefix, "wgp_EXAMPLE0000000000000000000000049LC8r"},
		{TokenPrefix, NewSecret(TokenPrefix)}, {KeyPrefix, NewSecret(KeyPrefix)}} {
		require.True(t, WellFormed(good.prefix, good.text), good.text)
		for i := range good.text {
			bad := []byte(good.text)
			bad[i] = '1'
			if bad[i] != good.text[i] {
				require.False(t, WellFormed(good.prefix, string(bad)), "%s", bad)
			}
		}
	}
	require.False(t, WellFormed(TokenPrefix, "wga_"))
}

func TestProjectKeysAreReadAndABadEntryIsNamedWithoutItsValue(t *testing.T) {
	secret := NewSecret(KeyPrefix)
	keys, err := ParseProjectKeys(secret + ", shop/ops=" + NewSecret(KeyPrefix) + ";events:read+usage:read," + Entry(NewSecret(KeyPrefix), "shop", "ci", ""))
	require.NoError(t, err)
	require.Len(t, keys.byDigest, 3)
	require.Equal(t, "default", keys.byDigest[digestOf(secret)].Project)
	require.Equal(t, "key1", keys.byDigest[digestOf(secret)].Label)
	require.Equal(t, []string{"default", "shop"}, keys.Projects())
	for _, bad := range []string{"x", "a=b", "/=x", secret + "," + secret, secret + ";agents:fly", "p/l=sha256:12", "p/l=" + secret + ",p/l=" + NewSecret(KeyPrefix)} {
		_, err := ParseProjectKeys(bad)
		require.Error(t, err, bad)
		require.NotContains(t, err.Error(), secret)
	}
}
