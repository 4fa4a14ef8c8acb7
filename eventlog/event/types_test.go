package event

import (
	"encoding/hex"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write the golden files anew")

// golden renders a type twice, filled and empty, each as its readable form
// and its record in hex.
func golden(s Spec) string {
	var b strings.Builder
	for _, p := range []Typed{filledOf(s), s.New()} {
		e := envelopeOf(p, s.Version)
		record, err := Encode(nil, &e.Draft)
		if err != nil {
			panic(err)
		}
		fmt.Fprintf(&b, "%s\n%x\n", AppendJSON(nil, &e), record)
	}
	return b.String()
}

func goldenPath(s Spec) string {
	return filepath.Join("testdata", fmt.Sprintf("%s.v%d.txt", s.Type, s.Version))
}

func TestEveryTypeIsWrittenAsItsGoldenFileSays(t *testing.T) {
	for _, s := range Types() {
		t.Run(string(s.Type), func(t *testing.T) {
			if *update {
				require.NoError(t, os.WriteFile(goldenPath(s), []byte(golden(s)), 0o644))
			}
			want, err := os.ReadFile(goldenPath(s))
			require.NoError(t, err)
			require.Equal(t, string(want), golden(s))
		})
	}
}

func TestEveryGoldenFileIsReadBack(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(files), len(Types()))
	for _, name := range files {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		lines := strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
		require.Len(t, lines, 4)
		for i := 0; i < len(lines); i += 2 {
			e, err := ParseJSON([]byte(lines[i]))
			require.NoError(t, err, name)
			record, err := hex.DecodeString(lines[i+1])
			require.NoError(t, err)
			d, err := Decode(record)
			require.NoError(t, err, name)
			require.Equal(t, e.Draft, d)
			_, err = Open(&d)
			require.NoError(t, err, name)
		}
	}
}

func TestEveryTypeParsesWhatItWrites(t *testing.T) {
	for _, s := range Types() {
		for _, p := range []Typed{filledOf(s), s.New()} {
			require.Equal(t, s.Type, p.EventType())
			e := envelopeOf(p, s.Version)
			back, err := Open(&e.Draft)
			require.NoError(t, err, s.Type)
			require.Equal(t, p.Fields(), back.Fields(), s.Type)
			if !reflect.ValueOf(p).Elem().IsZero() {
				require.Equal(t, p, back, "every field of %s reaches the payload", s.Type)
			}
		}
	}
}

// What New writes at once is what the encoder makes of the fields, also of more than the
// fifteen that a short map holds.
func TestEveryTypeIsPackedAsItsFieldsAreEncoded(t *testing.T) {
	most := 0
	for _, s := range Types() {
		for _, p := range []Typed{filledOf(s), s.New()} {
			d := New(time.Unix(0, goldenTime), Context{}, p)
			require.Nil(t, d.Payload)
			require.Equal(t, packedOf(t, p.Fields()), d.packed, s.Type)
			most = max(most, len(p.Fields()))
		}
	}
	require.Greater(t, most, 15)
	broken := New(time.Unix(0, goldenTime), Context{}, &HealthFail{Step: "wal", Message: "\xff"})
	_, err := Encode(nil, &broken)
	require.ErrorIs(t, err, ErrNotEncodable)
}

func TestEveryTypeRefusesWhatItWouldNotWrite(t *testing.T) {
	for _, s := range Types() {
		good := filledOf(s).Fields()
		extra := append(append(Payload{}, good...), Field{"zz_unknown", Bool(true)})
		require.ErrorContains(t, s.New().Parse(extra), "zz_unknown", s.Type)
		for i := range good {
			mistyped := append(Payload{}, good...)
			mistyped[i].Value = List(Bool(true))
			require.Error(t, s.New().Parse(mistyped), "%s.%s mistyped", s.Type, good[i].Key)

			renamed := append(Payload{}, good...)
			renamed[i].Key += "_"
			require.Error(t, s.New().Parse(renamed), "%s.%s renamed", s.Type, good[i].Key)

			missing := append(append(Payload{}, good[:i]...), good[i+1:]...)
			if p := s.New(); p.Parse(missing) == nil {
				require.Equal(t, missing, p.Fields(), "%s without %s", s.Type, good[i].Key)
			}
		}
	}
}

func TestAnOptionalFieldIsNotSpelledOutWhenItIsZero(t *testing.T) {
	for name, p := range map[string]struct {
		into Typed
		list Payload
	}{
		"text":   {new(ApprovalResolved), NewPayload(Field{"by", String("x")}, Field{"note", String("")}, Field{"resolution", String("approve")})},
		"number": {new(DBUnavailable), NewPayload(Field{"count", Int(0)}, Field{"message", String("x")})},
		"hash":   {new(Shutdown), NewPayload(Field{"digest", Bytes(make([]byte, 32))}, Field{"drained", Bool(true)}, Field{"reason", String("x")})},
	} {
		require.ErrorContains(t, p.into.Parse(p.list), "zero", name)
	}
}

func TestNumbersOutsideTheirGoTypeAreRefused(t *testing.T) {
	require.ErrorContains(t, new(CheckpointSigned).Parse(NewPayload(Field{"root", Bytes(make([]byte, 32))}, Field{"size", Int(-1)})), "out of range")

	huge := CheckpointSigned{Size: 1 << 63}
	e := envelopeOf(&huge, 1)
	_, err := Encode(nil, &e.Draft)
	require.ErrorIs(t, err, ErrNotEncodable)
}

func TestAnUnknownTypeOrVersionIsNamed(t *testing.T) {
	later := envelopeOf(new(Shutdown), 2)
	_, err := Open(&later.Draft)
	require.ErrorIs(t, err, ErrUnknownType)

	other := envelopeOf(new(Shutdown), 1)
	other.Type = "weather_changed"
	_, err = Open(&other.Draft)
	require.ErrorIs(t, err, ErrUnknownType)
	require.ErrorContains(t, err, "weather_changed")

	_, known := Lookup(other.Type)
	require.False(t, known)
}

func TestNewStampsIDTypeVersionAndPayload(t *testing.T) {
	d := New(goldenDraft().Time, Context{Actor: "system"}, &HealthFail{Step: "wal", Message: "slow"})
	require.Equal(t, TypeHealthFail, d.Type)
	require.Equal(t, uint16(1), d.TypeVersion)
	step, ok := d.Get("step")
	require.True(t, ok)
	text, _ := step.AsString()
	require.Equal(t, "wal", text)
	_, ok = d.Get("stepp")
	require.False(t, ok)
}
