package event

import (
	"encoding/hex"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// around puts payload bytes (hex) into an otherwise right record.
func around(payload string) string {
	return "9701c410000102030405060708090a0b0c0d0e0fa77374617274757001cf1816687ec05700018105a673797374656d" + payload
}

func TestTheDecoderRefusesEveryOtherWayToSayTheSame(t *testing.T) {
	require.Equal(t, goldenRecord, around("81a16eff"))
	for name, record := range map[string]string{
		"empty":                          "",
		"not an array":                   "00",
		"six items":                      strings.Replace(goldenRecord, "97", "96", 1),
		"record version 2":               strings.Replace(goldenRecord, "9701", "9702", 1),
		"array length in long form":      "dc0007" + goldenRecord[2:],
		"trailing byte":                  goldenRecord + "00",
		"cut short":                      goldenRecord[:len(goldenRecord)-2],
		"id of 15 bytes":                 strings.Replace(goldenRecord, "c41000", "c40f", 1),
		"id with a long length":          strings.Replace(goldenRecord, "c410", "c50010", 1),
		"type as bytes":                  strings.Replace(goldenRecord, "a773", "c40773", 1),
		"type empty":                     strings.Replace(goldenRecord, "a773746172747570", "a0", 1),
		"type version 0":                 strings.Replace(goldenRecord, "7001cf", "7000cf", 1),
		"type version in long form":      strings.Replace(goldenRecord, "7001cf", "70cc01cf", 1),
		"time as float":                  strings.Replace(goldenRecord, "cf1816", "cb1816", 1),
		"time over 63 bits":              strings.Replace(goldenRecord, "cf1816", "cfff16", 1),
		"context key 0":                  strings.Replace(goldenRecord, "8105a6", "8100a6", 1),
		"context key 22":                 strings.Replace(goldenRecord, "8105a6", "8116a6", 1),
		"context key as text":            strings.Replace(goldenRecord, "8105a6", "81a135a6", 1),
		"context value empty":            strings.Replace(goldenRecord, "8105a673797374656d", "8105a0", 1),
		"context value as bytes":         strings.Replace(goldenRecord, "8105a6", "8105c406", 1),
		"context key twice":              strings.Replace(goldenRecord, "8105a673797374656d", "8205a673797374656d05a673797374656d", 1),
		"context keys not sorted":        strings.Replace(goldenRecord, "8105a673797374656d", "8205a173"+"04a173", 1),
		"nil value":                      around("81a16ec0"),
		"float value":                    around("81a16ecb3ff0000000000000"),
		"ext value":                      around("81a16ed40101"),
		"unused byte":                    around("81a16ec1"),
		"-1 as int8":                     around("81a16ed0ff"),
		"1 as uint8":                     around("81a16ecc01"),
		"128 as int16":                   around("81a16ed10080"),
		"short text as str8":             around("81a16ed90161"),
		"text that is not UTF-8":         around("81a16ea1ff"),
		"key that is not UTF-8":          around("81a1ff01"),
		"key as bytes":                   around("81c4016e01"),
		"keys not sorted":                around("82a16201a16101"),
		"keys doubled":                   around("82a16101a16101"),
		"map with a long length":         around("de0001a16eff"),
		"list with a long length":        around("81a16edc000101"),
		"bytes with a long length":       around("81a16ec5000101"),
		"claims 4 GiB of text":           around("81a16edbffffffff"),
		"claims 4 G items":               around("81a16eddffffffff"),
		"nested deeper than the limit":   around("81a16e" + strings.Repeat("91", maxDepth-1) + "01"),
		"claims within claims":           around("81a16e" + strings.Repeat("dc00ff", 30) + strings.Repeat("00", 255)),
		"request id spelled out as text": strings.Replace(goldenRecord, "8105a673797374656d", "810bd928"+hex.EncodeToString([]byte("req_00010203-0405-0607-0809-0a0b0c0d0e0f")), 1),
		"request id of 15 bytes":         strings.Replace(goldenRecord, "8105a673797374656d", "810bc40f"+strings.Repeat("00", 15), 1),
	} {
		b, err := hex.DecodeString(record)
		require.NoError(t, err, name)
		_, err = Decode(b)
		require.ErrorIs(t, err, ErrRecord, name)
		requireSameDecoded(t, new(Decoder), b)
	}
}

func TestIDsOfTheProjectsOwnFormTakeSixteenBytes(t *testing.T) {
	d := goldenDraft()
	short := len(mustEncode(t, &d))
	d.Context.RequestID = NewRequestID(d.Time)
	d.Context.ExecutionID = NewExecutionID(d.Time)
	d.Context.ApprovalID = NewApprovalID(d.Time)
	record := mustEncode(t, &d)
	require.Len(t, record, short+3*(1+2+16))
	back, err := Decode(record)
	require.NoError(t, err)
	require.Equal(t, d, back)

	d.Context.RequestID = strings.ToUpper(d.Context.RequestID[:5]) + d.Context.RequestID[5:]
	back, err = Decode(mustEncode(t, &d))
	require.NoError(t, err)
	require.Equal(t, d.Context, back.Context, "a caller's own request id stays the text it is")
}

func TestEncodeRefusesWhatHasNoCanonicalForm(t *testing.T) {
	nested := Bool(true)
	for range maxDepth {
		nested = List(nested)
	}
	for name, change := range map[string]func(*Draft){
		"no type":             func(d *Draft) { d.Type = "" },
		"no version":          func(d *Draft) { d.TypeVersion = 0 },
		"type not UTF-8":      func(d *Draft) { d.Type = "\xff" },
		"time out of range":   func(d *Draft) { d.Time = time.Date(2300, 1, 1, 0, 0, 0, 0, time.UTC) },
		"zero time":           func(d *Draft) { d.Time = time.Time{} },
		"context not UTF-8":   func(d *Draft) { d.Context.Actor = "\xc3" },
		"unset value":         func(d *Draft) { d.Payload = Payload{{"a", Value{}}} },
		"unset item":          func(d *Draft) { d.Payload = Payload{{"a", List(Value{})}} },
		"keys out of order":   func(d *Draft) { d.Payload = Payload{{"b", Int(1)}, {"a", Int(1)}} },
		"doubled key":         func(d *Draft) { d.Payload = NewPayload(Field{"a", Int(1)}, Field{"a", Int(2)}) },
		"key not UTF-8":       func(d *Draft) { d.Payload = Payload{{"\xff", Int(1)}} },
		"text not UTF-8":      func(d *Draft) { d.Payload = Payload{{"a", String("\xff")}} },
		"nested too deep":     func(d *Draft) { d.Payload = Payload{{"a", nested}} },
		"map nested too deep": func(d *Draft) { d.Payload = Payload{{"a", Map(Field{"b", nested})}} },
	} {
		d := goldenDraft()
		change(&d)
		got, err := Encode([]byte("before"), &d)
		require.ErrorIs(t, err, ErrNotEncodable, name)
		require.Equal(t, "before", string(got), "%s: the buffer comes back as it was", name)
	}
}

func TestEncodeAppends(t *testing.T) {
	d := goldenDraft()
	got, err := Encode([]byte("before"), &d)
	require.NoError(t, err)
	require.Equal(t, "before", string(got[:6]))
	require.Equal(t, goldenRecord, hex.EncodeToString(got[6:]))
}

func TestIntegersTakeTheirShortestForm(t *testing.T) {
	for n, want := range map[int64]string{
		0: "00", 127: "7f", 128: "cc80", 255: "ccff", 256: "cd0100", 65535: "cdffff", 65536: "ce00010000",
		math.MaxUint32: "ceffffffff", math.MaxUint32 + 1: "cf0000000100000000", math.MaxInt64: "cf7fffffffffffffff",
		-1: "ff", -32: "e0", -33: "d0df", -128: "d080", -129: "d1ff7f", -32768: "d18000", -32769: "d2ffff7fff",
		math.MinInt32: "d280000000", math.MinInt32 - 1: "d3ffffffff7fffffff", math.MinInt64: "d38000000000000000",
	} {
		d := goldenDraft()
		d.Payload = NewPayload(Field{"n", Int(n)})
		record := mustEncode(t, &d)
		require.Equal(t, around("81a16e"+want), hex.EncodeToString(record), n)
		back, err := Decode(record)
		require.NoError(t, err)
		require.Equal(t, d, back)
	}
}

func TestLengthsCrossTheirBorders(t *testing.T) {
	for _, n := range []int{0, 1, 15, 16, 31, 32, 255, 256, 65535, 65536} {
		d := goldenDraft()
		d.Payload = NewPayload(Field{"b", Bytes(make([]byte, n))}, Field{"l", Strings(make([]string, n))}, Field{"s", String(strings.Repeat("x", n))})
		back, err := Decode(mustEncode(t, &d))
		require.NoError(t, err, n)
		require.Equal(t, d, back, n)
	}
}

const goldenLine = `{"seq":1,"event_id":"evt_00010203-0405-0607-0809-0a0b0c0d0e0f","event_type":"startup","timestamp":"2025-01-01T00:00:00.000000001Z",` +
	`"policy_version":"","operation":"","fingerprint":"","decision":"","actor":"system","app":"","tenant":"","env":"","session_id":"","approval_id":"",` +
	`"record_version":1,"type_version":1,"payload":{"n":-1},` +
	`"previous_hash":"fb1254da3b0c38ebe14723c19a7469b88386a7c377e5d2974e0693791f3ac0c0","event_hash":"08d352297bfb2d809773e20514c861068e293d45bd7dfd7fa8f8f1d62770a9a2"}`

func goldenEnvelope(t *testing.T) Envelope {
	e := Envelope{Seq: 1, Draft: goldenDraft()}
	copy(e.PreviousHash[:], unhex(t, "fb1254da3b0c38ebe14723c19a7469b88386a7c377e5d2974e0693791f3ac0c0"))
	copy(e.Hash[:], unhex(t, "08d352297bfb2d809773e20514c861068e293d45bd7dfd7fa8f8f1d62770a9a2"))
	return e
}

func TestTheReadableFormOfTheGoldenEvent(t *testing.T) {
	e := goldenEnvelope(t)
	require.Equal(t, goldenLine, string(AppendJSON(nil, &e)))
	back, err := ParseJSON([]byte(goldenLine))
	require.NoError(t, err)
	require.Equal(t, e, back)
}

func TestTheReadableFormLosesNothing(t *testing.T) {
	e := goldenEnvelope(t)
	e.Payload = NewPayload(
		Field{"$i", String("mine")}, Field{"$$", Int(1 << 53)}, Field{"", Int(-(1<<53 - 1))}, Field{"a\x00\x1f\"\\\u2028<é", Bytes([]byte{0xff, 0xfe})},
		Field{"empty", Map()}, Field{"none", List()}, Field{"list", List(Bool(true), Map(Field{"$b", Bool(false)}))}, Field{"nobytes", Bytes(nil)})
	line := string(AppendJSON(nil, &e))
	require.Contains(t, line, `"payload":{"":-9007199254740991,"$$$":{"$i":"9007199254740992"},"$$i":"mine","a\u0000\u001f\"\\`+"\u2028<é"+`":{"$b":"//4="},`+
		`"empty":{},"list":[true,{"$$b":false}],"nobytes":{"$b":""},"none":[]}`)
	back, err := ParseJSON([]byte(line))
	require.NoError(t, err)
	require.Equal(t, e, back)
}

func TestOneLineHasOneSpellingAlone(t *testing.T) {
	change := func(old, new string) string {
		require.Contains(t, goldenLine, old)
		return strings.Replace(goldenLine, old, new, 1)
	}
	for name, line := range map[string]string{
		"empty":                     "",
		"newline at the end":        goldenLine + "\n",
		"carriage return":           goldenLine + "\r",
		"cut short":                 goldenLine[:len(goldenLine)-1],
		"space":                     change(`"seq":1`, `"seq": 1`),
		"leading zero":              change(`"seq":1`, `"seq":01`),
		"plus sign":                 change(`"seq":1`, `"seq":+1`),
		"fraction":                  change(`"seq":1`, `"seq":1.0`),
		"seq over 64 bits":          change(`"seq":1`, `"seq":18446744073709551616`),
		"keys in another order":     change(`"app":"","tenant":""`, `"tenant":"","app":""`),
		"doubled key":               change(`"app":""`, `"app":"","app":""`),
		"unknown key":               change(`"app":""`, `"app":"","apple":""`),
		"missing contract field":    change(`"app":"",`, ``),
		"empty optional field":      change(`"approval_id":""`, `"approval_id":"","request_id":""`),
		"upper-case id":             change("0a0b0c", "0A0b0c"),
		"id without its prefix":     change("evt_", "apr_"),
		"upper-case hash":           change("fb12", "FB12"),
		"short hash":                change("fb12", "12"),
		"time with fewer decimals":  change("000000001Z", "00000001Z"),
		"time with an offset":       change("000000001Z", "000000001+00:00"),
		"time that does not exist":  change("2025-01-01", "2025-02-30"),
		"time out of range":         change("2025-01-01", "2525-01-01"),
		"escaped slash":             change("system", `sy\/tem`),
		"escaped letter":            change("system", `\u0073ystem`),
		"escaped control character": change("system", `\n`),
		"upper-case escape":         change("system", `\u001F`),
		"raw control character":     change("system", "\x01"),
		"not UTF-8":                 change("system", "\xff"),
		"unfinished escape":         change("system", `\u00`),
		"null":                      change(`{"n":-1}`, `{"n":null}`),
		"float":                     change(`{"n":-1}`, `{"n":-1.5}`),
		"minus zero":                change(`{"n":-1}`, `{"n":-0}`),
		"large number as it is":     change(`{"n":-1}`, `{"n":9007199254740992}`),
		"small number as text":      change(`{"n":-1}`, `{"n":{"$i":"1"}}`),
		"unpadded base64":           change(`{"n":-1}`, `{"n":{"$b":"AA"}}`),
		"base64 with spare bits":    change(`{"n":-1}`, `{"n":{"$b":"AB=="}}`),
		"base64 with a newline":     change(`{"n":-1}`, `{"n":{"$b":"AA==\u000a"}}`),
		"unknown mark":              change(`{"n":-1}`, `{"$n":1}`),
		"mark beside a key":         change(`{"n":-1}`, `{"n":{"$i":"9007199254740992","x":1}}`),
		"payload keys not sorted":   change(`{"n":-1}`, `{"n":-1,"m":1}`),
		"comma at the end":          change(`{"n":-1}`, `{"n":-1,}`),
		"list without an end":       change(`{"n":-1}`, `{"n":[1`),
		"nested too deep":           change(`-1}`, strings.Repeat("[", 10000)),
		"deep but closed":           change(`-1}`, strings.Repeat("[", maxDepth)+strings.Repeat("]", maxDepth)+"}"),
		"record version 2":          change(`"record_version":1`, `"record_version":2`),
		"type version 0":            change(`"type_version":1`, `"type_version":0`),
		"type version over 16 bits": change(`"type_version":1`, `"type_version":65537`),
		"type empty":                change(`"startup"`, `""`),
	} {
		_, err := ParseJSON([]byte(line))
		require.ErrorIs(t, err, ErrJSON, name)
	}
}

func TestIDsAreReadAsTheyAreWritten(t *testing.T) {
	at := time.UnixMilli(1735689600123)
	id := NewID(at)
	back, err := ParseID(id.String())
	require.NoError(t, err)
	require.Equal(t, id, back)
	require.Equal(t, byte(7), id[6]>>4, "version")
	require.Equal(t, byte(2), id[8]>>6, "variant")
	require.Equal(t, "0194207e-2b", NewID(time.UnixMilli(0x0194207e2b00)).String()[4:15], "the first 48 bits are the moment")
	require.NotEqual(t, NewID(at), NewID(at))

	for prefix, s := range map[string]string{"req_": NewRequestID(at), "apr_": NewApprovalID(at), "exe_": NewExecutionID(at), "err_": NewErrorID(at)} {
		_, ok := parsePrefixed(prefix, s)
		require.True(t, ok, s)
	}
	good := id.String()
	for _, bad := range []string{"", "evt_", good[4:], strings.ToUpper(good), good + "0", good[:39], strings.Replace(good, "-", "0", 1), good[:12] + "x" + good[13:], good[:13] + "-" + good[14:]} {
		_, err := ParseID(bad)
		require.Error(t, err, bad)
	}
}

func TestAccessorsTellTheKind(t *testing.T) {
	b, ok := Bytes(nil).AsBytes()
	require.True(t, ok)
	require.NotNil(t, b)
	n, ok := Int(5).AsInt()
	require.True(t, ok && n == 5)
	yes, ok := Bool(true).AsBool()
	require.True(t, ok && yes)
	items, ok := List(Int(1), Int(2)).AsList()
	require.True(t, ok)
	require.Equal(t, []Value{Int(1), Int(2)}, items)
	fields, ok := Map(Field{"b", Int(1)}, Field{"a", Int(2)}).AsMap()
	require.True(t, ok)
	require.Equal(t, Payload{{"a", Int(2)}, {"b", Int(1)}}, fields)

	_, ok = Int(1).AsBool()
	require.False(t, ok)
	_, ok = Bool(true).AsInt()
	require.False(t, ok)
	_, ok = Int(1).AsString()
	require.False(t, ok)
	_, ok = String("x").AsBytes()
	require.False(t, ok)
	_, ok = Map().AsList()
	require.False(t, ok)
	_, ok = List().AsMap()
	require.False(t, ok)
	require.Equal(t, "invalid", Value{}.Kind().String())
	require.Equal(t, "map", Map().Kind().String())
	require.Equal(t, "Kind(99)", Kind(99).String())
}
