package catalog_test

import (
	"bytes"
	"compress/flate"
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"writegate/sqlgate/catalog"
	"writegate/sqlgate/classify"
)

func unjudged(string) (classify.Classification, error) {
	return classify.Classification{Class: classify.ClassRead}, nil
}

// What is packed is what the hash covers, and gives the same snapshot again.
func TestAPackedSnapshotIsWhatWasRead(t *testing.T) {
	s := newServer(t, shop)
	whole := s.snapshot()
	content, err := catalog.Unpack(whole.Packed(), nil)
	require.NoError(t, err)
	require.Equal(t, whole.Sum(), sha256.Sum256(content))
	require.Equal(t, fmt.Sprintf("%x", whole.Sum()), whole.Hash())
	again, err := catalog.Parse(content, func(sql string) (classify.Classification, error) { return s.classifier.Classify(t.Context(), sql) })
	require.NoError(t, err)
	require.Equal(t, whole.Hash(), again.Hash())
	require.Equal(t, whole.Relations(), again.Relations())
	for _, sql := range []string{"SELECT * FROM behind", "DELETE FROM customers WHERE id = 1", "UPDATE plain SET note = 'x' WHERE id = 1"} {
		then, lines := s.judged(whole, sql)
		now, linesNow := s.judged(again, sql)
		require.Equal(t, then, now, sql)
		require.Equal(t, lines, linesNow, sql)
	}

	s.run("CREATE TABLE one_more (id int)")
	changed := s.snapshot()
	difference, err := catalog.Difference(whole.Packed(), changed.Packed())
	require.NoError(t, err)
	require.Less(t, len(difference), len(changed.Packed())/4)
	content, err = catalog.Unpack(difference, content)
	require.NoError(t, err)
	require.Equal(t, changed.Sum(), sha256.Sum256(content))
	_, err = catalog.Unpack(difference, nil)
	require.ErrorContains(t, err, "the difference to another one")
}

// Also where two relations have the name of one, and in any order of the rows.
func TestTheHashDoesNotHangOnTheOrderOfTheRows(t *testing.T) {
	hashes := map[string]bool{}
	for range 50 {
		var entries []catalog.Entry
		for n := range 40 {
			entries = append(entries, catalog.Entry{Relation: fmt.Sprint("a.b.c", n%3), Kind: "r", Keys: []string{fmt.Sprint(n)}}, catalog.Entry{Call: fmt.Sprint("app.f", n)})
		}
		rand.Shuffle(len(entries), func(i, k int) { entries[i], entries[k] = entries[k], entries[i] })
		s, err := catalog.New(entries, unjudged)
		require.NoError(t, err)
		hashes[s.Hash()] = true
	}
	require.Len(t, hashes, 1)
}

func TestADifferenceGivesWhatItWasMadeOf(t *testing.T) {
	some := func() *catalog.Snapshot {
		var entries []catalog.Entry
		for n := range 60 {
			if rand.IntN(3) > 0 {
				entries = append(entries, catalog.Entry{Relation: fmt.Sprintf("app.t%02d", n), Kind: "v", View: fmt.Sprint("SELECT ", rand.IntN(2))})
			}
			if rand.IntN(10) == 0 { // twice the same
				entries = append(entries, catalog.Entry{Relation: "a.b.c", Kind: "r"})
			}
		}
		s, err := catalog.New(entries, unjudged)
		require.NoError(t, err)
		return s
	}
	empty, err := catalog.New(nil, unjudged)
	require.NoError(t, err)
	for range 300 {
		for _, pair := range [][2]*catalog.Snapshot{{some(), some()}, {empty, some()}, {some(), empty}} {
			difference, err := catalog.Difference(pair[0].Packed(), pair[1].Packed())
			require.NoError(t, err)
			base, err := catalog.Unpack(pair[0].Packed(), nil)
			require.NoError(t, err)
			content, err := catalog.Unpack(difference, base)
			require.NoError(t, err)
			require.Equal(t, pair[1].Sum(), sha256.Sum256(content))
		}
	}
}

func FuzzUnpack(f *testing.F) {
	base := []byte("{\"relation\":\"a\"}\n{\"relation\":\"b\"}\n")
	for _, script := range []string{"", "=1\n{}\n", "-2\n", "=3\n", "=-1\n", "=99999999999999999999\n", "+\n", "{", "\n", "=1", "=1\n-1\n=1\n"} {
		var b bytes.Buffer
		w, err := flate.NewWriter(&b, 1)
		require.NoError(f, err)
		_, err = w.Write([]byte(script))
		require.NoError(f, err)
		require.NoError(f, w.Close())
		f.Add(b.Bytes())
	}
	f.Add([]byte("no DEFLATE"))
	f.Fuzz(func(t *testing.T, packed []byte) {
		for _, base := range [][]byte{base, {}, nil} {
			content, err := catalog.Unpack(packed, base)
			if err == nil && len(content) < 1<<20 {
				_, _ = catalog.Parse(content, unjudged)
			}
		}
	})
}
