package agentctl

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

var noon = time.Date(2026, 1, 31, 12, 0, 30, 0, time.UTC)

// No 3600 seconds ever hold more than the limit, whatever the schedule, and a
// limiter that is filled again from its minutes admits no more than the old one.
func TestNoHourHoldsMoreThanTheLimit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l, now := newLimiter(), noon
		var admitted []time.Time
		byMinute := map[int64]int{}
		for range rapid.IntRange(1, 60).Draw(t, "bursts") {
			now = now.Add(time.Duration(rapid.IntRange(0, 600_000).Draw(t, "gap")) * time.Millisecond)
			if rapid.IntRange(0, 9).Draw(t, "restart") == 0 {
				l = newLimiter()
				for minute, n := range byMinute {
					l.restore("c", time.Unix(minute*60, 0), now, n)
				}
			}
			for range rapid.IntRange(1, 400).Draw(t, "burst") {
				if _, ok := l.admit([]string{"c"}, now); ok {
					admitted = append(admitted, now)
					byMinute[minuteOf(now)]++
				}
			}
		}
		first := 0
		for i, at := range admitted {
			for at.Sub(admitted[first]) >= WindowSeconds*time.Second {
				first++
			}
			require.LessOrEqual(t, i-first+1, RequestLimit)
		}
	})
}

func TestOfManyAtOnceOneTakesTheLastPlace(t *testing.T) {
	l := newLimiter()
	for range RequestLimit - 1 {
		_, ok := l.admit([]string{"key_1", "tok_1"}, noon)
		require.True(t, ok)
	}
	var wait sync.WaitGroup
	admitted := make(chan bool, 50)
	for range 50 {
		wait.Go(func() {
			_, ok := l.admit([]string{"key_1"}, noon)
			admitted <- ok
		})
	}
	wait.Wait()
	close(admitted)
	n := 0
	for ok := range admitted {
		if ok {
			n++
		}
	}
	require.Equal(t, 1, n)
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
