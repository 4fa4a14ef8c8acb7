package projections

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"writegate/eventlog/event"
)

func TestEveryEventTypeHasAProjectorInItsVersion(t *testing.T) {
	for _, s := range event.Types() {
		p, ok := projectors[s.Type]
		require.True(t, ok, "%s: add it to projectors, if only as indexed", s.Type)
		require.Equal(t, s.Version, p.version, s.Type)
	}
	require.Len(t, projectors, len(event.Types()))
}

func TestRecordsAreReadAsTheyAreWritten(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		at := func() time.Time { return time.Unix(0, rapid.Int64().Draw(t, "ns")).UTC() }
		rows := rapid.OneOf(rapid.Just[*int64](nil), rapid.Custom(func(t *rapid.T) *int64 {
			n := rapid.Int64Range(0, math.MaxInt64-1).Draw(t, "n")
			return &n
		})).Draw(t, "rows")
		a := Approval{ID: rapid.String().Draw(t, "id"), State: ApprovalPending, Use: UseUnknown, Seq: rapid.Uint64().Draw(t, "seq"),
			SQL: rapid.String().Draw(t, "sql"), Parameters: rapid.SampledFrom([][]string{nil, {"7::int4", "NULL"}}).Draw(t, "parameters"), Profile: rapid.String().Draw(t, "profile"), MaxRows: rows, RequestDigest: [32]byte{1, 31: 2}, CreatedAt: at(), ExpiresAt: at()}
		if a.CreatedAt.UnixNano() == 0 || a.ExpiresAt.UnixNano() == 0 {
			return
		}
		var got Approval
		require.NoError(t, unmarshal(marshal(nil, &a), &got))
		require.Equal(t, a, got)

		x := Execution{ID: "exe_1", Events: rapid.SliceOf(rapid.Uint64()).Draw(t, "events"), Marker: rapid.Bool().Draw(t, "marker"), DispatchedAt: time.Unix(0, 5).UTC()}
		var gotX Execution
		require.NoError(t, unmarshal(marshal(nil, &x), &gotX))
		require.Equal(t, fmt.Sprint(x), fmt.Sprint(gotX))
	})
}

func TestADamagedRecordIsAnErrorAndNoPanic(t *testing.T) {
	good := marshal(nil, &Approval{ID: "apr_1", SQL: "x"})
	for n := range good {
		require.ErrorIs(t, unmarshal(good[:n], new(Approval)), errRecord, "cut at %d", n)
	}
	require.ErrorIs(t, unmarshal(append(good, 0), new(Approval)), errRecord)
	huge := []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01}
	require.ErrorIs(t, unmarshal(huge, new(Approval)), errRecord)
	require.ErrorIs(t, unmarshal(append([]byte{0, 0, 0}, huge...), new(Execution)), errRecord)
}

// What a block's postings say is what its entries have, value by value.
func TestPostingsSayWhichEventsHaveAValue(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var all fieldPostings
		for range 2 { // the second time in the memory of the first
			b, want := block{}, map[tag]*bitmap{}
			has := func(f field, v string, i int) {
				if want[tag{f, v}] == nil {
					want[tag{f, v}] = new(bitmap)
				}
				want[tag{f, v}].add(i)
			}
			values := rapid.IntRange(1, 3*fewValues).Draw(t, "values")
			value := rapid.Custom(func(t *rapid.T) string { return fmt.Sprint("v", rapid.IntRange(1, values).Draw(t, "value")) })
			for i := range rapid.IntRange(1, blockEvents).Draw(t, "events") {
				var e entry
				for f := range field(3) {
					switch {
					case i > 0 && rapid.IntRange(0, 3).Draw(t, "as before") > 0:
						e.values[f] = b.entries[i-1].values[f]
					case rapid.Bool().Draw(t, "has one"):
						e.values[f] = value.Draw(t, "text")
					}
					if e.values[f] != "" {
						has(f, e.values[f], i)
					}
				}
				b.entries = append(b.entries, e)
			}
			all.gather(&b)
			got := map[tag]*bitmap{}
			for f := range all {
				all[f].eachValue(func(value string, runs []run) {
					require.NotContains(t, got, tag{field(f), value})
					m, err := decodePosting(appendPosting(nil, runs))
					require.NoError(t, err)
					got[tag{field(f), value}] = &m
				})
			}
			require.Equal(t, want, got)
		}
	})
	whole := []run{{from: 0, to: blockEvents}}
	got, err := decodePosting(appendPosting(nil, whole))
	require.NoError(t, err)
	require.Equal(t, full(), got)
	for _, bad := range [][]byte{{1}, {2, 0}, make([]byte, 66)} {
		_, err := decodePosting(bad)
		require.ErrorIs(t, err, errRecord)
	}
}

func TestAStoreOfOtherProjectorsIsPutAside(t *testing.T) {
	fs := vfs.NewMem()
	o := Options{Dir: "store", FS: fs}
	o.complete()
	db, err := pebble.Open("store", (&Store{o: o}).pebbleOptions())
	require.NoError(t, err)
	applied := encodeApplied(Applied{Seq: 5})
	applied[len(applied)-1]++
	require.NoError(t, db.Set(spaceKey, []byte{7}, pebble.NoSync))
	require.NoError(t, db.Set(physical(7, []byte(keyApplied)), applied, pebble.NoSync))
	require.NoError(t, db.Flush())
	require.NoError(t, db.Close())

	s, err := Open(o)
	require.NoError(t, err)
	aside, ok := s.Aside()
	require.True(t, ok)
	require.Contains(t, aside.Reason, "another version")
	require.Zero(t, s.Applied().Seq)
	require.NoError(t, s.Close())
}

func TestAProjectorThatPanicsIsAnErrorWithItsEvent(t *testing.T) {
	healthy := projectors[event.TypeHealthFail]
	projectors[event.TypeHealthFail] = projector{1, func(*tx, *event.Envelope) error { panic("index out of range") }}
	defer func() { projectors[event.TypeHealthFail] = healthy }()
	s, err := Open(Options{Dir: "store", FS: vfs.NewMem()})
	require.NoError(t, err)
	d := event.New(time.Unix(1, 0), event.Context{}, &event.HealthFail{})
	err = s.apply([]event.Envelope{{Seq: 1, Draft: d}})
	require.ErrorContains(t, err, "event 1, health_fail: projector panicked: index out of range")
	require.NoError(t, s.Close())
}

func TestAFatalMessageOfPebbleEndsTheStoreInOrder(t *testing.T) {
	s, err := Open(Options{Dir: "store", FS: vfs.NewMem()})
	require.NoError(t, err)
	defer s.db.Close()
	go (&logger{store: s}).Fatalf("MANIFEST flush failed: %v", "disk full")
	err = <-s.Fatal()
	require.ErrorContains(t, err, "disk full")
	require.ErrorContains(t, s.WaitApplied(t.Context(), 1), "disk full")
	require.ErrorContains(t, s.apply(nil), "disk full")
	require.ErrorContains(t, s.Close(), "disk full")
}

func TestSpacesTakeTurnsAndNeverMeetTheSpaceKey(t *testing.T) {
	id := byte(1)
	for range 1000 {
		next := nextSpace(id)
		require.NotEqual(t, id, next)
		require.NotZero(t, next)
		require.Less(t, next, byte(0xff))
		id = next
	}
}

func TestADamagedPieceOfTheTreeSpoilsTheStore(t *testing.T) {
	for name, damage := range map[string]func(*Store) error{
		"missing": func(s *Store) error { return s.db.Delete(physical(s.space.id, tileKey(0)), pebble.NoSync) },
		"short": func(s *Store) error {
			return s.db.Set(physical(s.space.id, tileKey(0)), make([]byte, 33), pebble.NoSync)
		},
	} {
		t.Run(name, func(t *testing.T) {
			fs := vfs.NewMem()
			s, err := Open(Options{Dir: "store", FS: fs})
			require.NoError(t, err)
			var events sliceSource
			for i := range 3 * blockEvents / 2 {
				e := event.Envelope{Seq: uint64(i + 1), Hash: [32]byte{byte(i), byte(i >> 8), 1}, Draft: event.New(time.Unix(1, 0), event.Context{}, &event.HealthFail{})}
				if i > 0 {
					e.PreviousHash = events[i-1].Hash
				}
				events = append(events, e)
			}
			require.NoError(t, s.Connect(t.Context(), events))
			require.NoError(t, damage(s))
			v := s.View()
			_, err = v.Tree().ReadHashes([]int64{0})
			require.ErrorIs(t, err, ErrDamaged)
			require.NoError(t, v.Close())
			require.ErrorIs(t, s.Close(), ErrDamaged)

			s, err = Open(Options{Dir: "store", FS: fs})
			require.NoError(t, err)
			_, aside := s.Aside()
			require.True(t, aside, "the next start rebuilds it")
			require.NoError(t, s.Connect(t.Context(), events))
			v = s.View()
			_, err = v.Tree().ReadHashes([]int64{0, 1500})
			require.NoError(t, err)
			require.NoError(t, v.Close())
			require.NoError(t, s.Close())
		})
	}
}

func TestARegisterForgetsNoKey(t *testing.T) {
	r := newRegister()
	key := func(i int) []byte { return fmt.Appendf(nil, "ex/%d", i) }
	for i := range 20_000 {
		r.add(key(i))
	}
	strangers := 0
	for i := range 20_000 {
		require.True(t, r.mayHave(key(i)))
		if r.mayHave(key(1_000_000 + i)) {
			strangers++
		}
	}
	require.Less(t, strangers, 200, "one in a hundred would be a poor register")
}
