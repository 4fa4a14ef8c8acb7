package sqlgate

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAnApprovalShowsItsParameters(t *testing.T) {
	w := newWireWorld(t, nil)
	c := w.wire()
	require.NoError(t, c.Parse(t.Context(), "", "DELETE FROM t WHERE id = $1 OR v = $2 OR v = $3 OR id = $4", []uint32{23, 25}))
	long := strings.Repeat("é", 600)
	require.NoError(t, c.Bind("", "", []int16{1, 0, 0, 0}, [][]byte{{0, 0, 0, 7}, []byte("O'Hara"), []byte(long), nil}, nil))
	_, err := c.Execute(t.Context(), "", 0, true, &rowsSink{})
	var refusal *WireRefusal
	require.True(t, errors.As(err, &refusal))
	view := w.store.View()
	defer view.Close()
	a, found, err := view.Approval(refusal.Answer.ApprovalID)
	require.NoError(t, err)
	require.True(t, found)
	require.Equal(t, []string{"7::int4", "'O''Hara'::text", "'" + strings.Repeat("é", 512) + "'… (1200 bytes)", "NULL"}, a.Parameters)
	require.Equal(t, "DELETE FROM t WHERE id = $1 OR v = $2 OR v = $3 OR id = $4", a.SQL)
}

func TestParametersAreShownAsConstants(t *testing.T) {
	for want, row := range map[string]struct {
		oid    uint32
		format int16
		value  string
	}{
		"true::bool": {16, 1, "\x01"}, "-2::int2": {21, 1, "\xff\xfe"}, "9::int8": {20, 1, "\x00\x00\x00\x00\x00\x00\x00\x09"},
		"1.5::float8": {701, 1, "\x3f\xf8\x00\x00\x00\x00\x00\x00"},
		"'00010203-0405-0607-0809-0a0b0c0d0e0f'::uuid": {2950, 1, "\x00\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0e\x0f"},
		"'x'::text": {25, 1, "x"}, `'\xff00'`: {0, 1, "\xff\x00"}, `'\x01'::int4`: {23, 1, "\x01"}, "'5'": {0, 0, "5"}, `'\xff'::text`: {25, 0, "\xff"},
	} {
		require.Equal(t, want, (&wireStatement{types: []uint32{row.oid}}).showParameter(0, row.format, []byte(row.value)))
	}
	s := &submission{wire: &wireCall{wire: &Wire{}, portal: &wirePortal{statement: &wireStatement{}}}}
	for range 100 {
		s.wire.portal.params = append(s.wire.portal.params, []byte(strings.Repeat("a", 1000)))
	}
	shown := s.shownParams()
	require.Len(t, shown, 66)
	require.Equal(t, "35 more", shown[65])
}
