package sqlgate

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"writegate/sqlgate/pgexec"
)

var (
	errNotRead = errors.New("no binary form that is known")
	errLong    = errors.New("longer than what is shown")
)

// binaryText is the text form of a value in PostgreSQL's binary form (the send and
// receive functions of the server's src/backend/utils/adt), of a built-in type by its
// name. ok is false where the bytes are no such value, or where no text means it on
// every server and under every setting. A text that is longer than shownParameter
// ends early: whole is false.
func binaryText(kind string, value []byte) (text string, whole, ok bool) {
	r := &valueReader{rest: value}
	err := r.value(kind)
	if err == nil && len(r.rest) > 0 {
		err = errNotRead
	}
	return r.out.String(), err == nil, (err == nil || errors.Is(err, errLong)) && utf8.ValidString(r.out.String()) && !strings.Contains(r.out.String(), "\x00")
}

// A valueReader reads one binary value and writes its text.
type valueReader struct {
	rest []byte
	out  strings.Builder
}

// take gives the next n bytes; nil, and an error, where there are fewer.
func (r *valueReader) take(n int) ([]byte, error) {
	if n < 0 || n > len(r.rest) {
		return nil, errNotRead
	}
	b := r.rest[:n]
	r.rest = r.rest[n:]
	return b, nil
}

func (r *valueReader) int16() (int, error) {
	b, err := r.take(2)
	if err != nil {
		return 0, err
	}
	return int(int16(binary.BigEndian.Uint16(b))), nil
}

func (r *valueReader) int32() (int, error) {
	b, err := r.take(4)
	if err != nil {
		return 0, err
	}
	return int(int32(binary.BigEndian.Uint32(b))), nil
}

func (r *valueReader) int64() (int64, error) {
	b, err := r.take(8)
	if err != nil {
		return 0, err
	}
	return int64(binary.BigEndian.Uint64(b)), nil
}

// write adds to the text; errLong ends the reading.
func (r *valueReader) write(text string) error {
	r.out.WriteString(text)
	if r.out.Len() > shownParameter {
		return errLong
	}
	return nil
}

func (r *valueReader) value(kind string) error {
	if elem, ok := strings.CutSuffix(kind, "[]"); ok {
		return r.array(elem)
	}
	if elem, ok := rangeTypes[kind]; ok {
		return r.span(elem)
	}
	if name, ok := strings.CutSuffix(kind, "multirange"); ok {
		return r.multirange(rangeTypes[name+"range"])
	}
	if form, ok := geometricTypes[kind]; ok {
		return r.numbers(form)
	}
	switch kind {
	case "bool":
		b, err := r.take(1)
		if err != nil {
			return err
		}
		return r.write(strconv.FormatBool(b[0] != 0))
	case "int2":
		n, err := r.int16()
		if err != nil {
			return err
		}
		return r.write(strconv.Itoa(n))
	case "int4":
		n, err := r.int32()
		if err != nil {
			return err
		}
		return r.write(strconv.Itoa(n))
	case "int8":
		n, err := r.int64()
		if err != nil {
			return err
		}
		return r.write(strconv.FormatInt(n, 10))
	case "oid", "xid", "cid", "regproc", "regprocedure", "regoper", "regoperator", "regclass", "regtype", "regrole", "regnamespace", "regcollation",
		"regconfig", "regdictionary":
		n, err := r.int32()
		if err != nil {
			return err
		}
		return r.write(strconv.FormatUint(uint64(uint32(n)), 10))
	case "xid8":
		n, err := r.int64()
		if err != nil {
			return err
		}
		return r.write(strconv.FormatUint(uint64(n), 10))
	case "pg_lsn":
		n, err := r.int64()
		if err != nil {
			return err
		}
		return r.write(fmt.Sprintf("%X/%X", uint32(uint64(n)>>32), uint32(n)))
	case "tid":
		b, err := r.take(6)
		if err != nil {
			return err
		}
		return r.write(fmt.Sprintf("(%d,%d)", binary.BigEndian.Uint32(b), binary.BigEndian.Uint16(b[4:])))
	case "float4":
		n, err := r.int32()
		if err != nil {
			return err
		}
		f := math.Float32frombits(uint32(n))
		return r.float(float64(f), 32, f != f && uint32(n) != 0x7FC00000)
	case "float8":
		return r.float8()
	case "numeric":
		return r.numeric()
	case "date":
		return r.date()
	case "time":
		n, err := r.int64()
		if err != nil {
			return err
		}
		return r.clock(n)
	case "timetz":
		return r.clockWithZone()
	case "timestamp", "timestamptz":
		return r.moment(kind == "timestamptz")
	case "interval":
		return r.interval()
	case "uuid":
		b, err := r.take(16)
		if err != nil {
			return err
		}
		h := hex.EncodeToString(b)
		return r.write(strings.Join([]string{h[:8], h[8:12], h[12:16], h[16:20], h[20:]}, "-"))
	case "inet", "cidr":
		return r.address(kind)
	case "macaddr", "macaddr8":
		b, err := r.take(map[string]int{"macaddr": 6, "macaddr8": 8}[kind])
		if err != nil {
			return err
		}
		return r.write(strings.TrimSuffix(fmt.Sprintf(strings.Repeat("%02x:", len(b)), anyOf(b)...), ":"))
	case "bit", "varbit":
		return r.bits()
	case "path", "polygon":
		return r.points(kind)
	case "bytea":
		b, _ := r.take(len(r.rest))
		return r.write(`\x` + hex.EncodeToString(b[:min(len(b), shownParameter)]))
	case "char":
		b, err := r.take(1)
		if err != nil || b[0] >= utf8.RuneSelf { // how such a byte is written depends on the server
			return errNotRead
		}
		return r.write(strings.TrimSuffix(string(b), "\x00"))
	case "jsonb", "jsonpath":
		b, err := r.take(1)
		if err != nil || b[0] != 1 {
			return errNotRead
		}
		return r.text()
	case "xml":
		if bytes.Contains(r.rest, []byte("encoding")) { // the bytes may be in another one than the text would be
			return errNotRead
		}
		return r.text()
	case "text", "varchar", "bpchar", "name", "json", "unknown", "refcursor":
		return r.text()
	}
	return errNotRead
}

func anyOf(b []byte) (list []any) {
	for _, c := range b {
		list = append(list, c)
	}
	return list
}

// text takes the rest as it is.
func (r *valueReader) text() error {
	b, _ := r.take(len(r.rest))
	if !utf8.Valid(b) || bytes.IndexByte(b, 0) >= 0 {
		return errNotRead
	}
	return r.write(string(b))
}

// float writes one. No constant means a NaN of other bits than those of 'NaN', which a server
// keeps, and shows to float8send and its like.
func (r *valueReader) float(f float64, bits int, otherNaN bool) error {
	switch {
	case otherNaN:
		return errNotRead
	case math.IsNaN(f):
		return r.write("NaN")
	case math.IsInf(f, 1):
		return r.write("Infinity")
	case math.IsInf(f, -1):
		return r.write("-Infinity")
	}
	return r.write(strconv.FormatFloat(f, 'g', -1, bits))
}

func (r *valueReader) float8() error {
	n, err := r.int64()
	if err != nil {
		return err
	}
	f := math.Float64frombits(uint64(n))
	return r.float(f, 64, f != f && n != 0x7FF8_0000_0000_0000)
}

// numeric: how many groups of four digits, the weight of the first, sign and scale.
func (r *valueReader) numeric() error {
	b, err := r.take(8)
	if err != nil {
		return err
	}
	count, weight := int(binary.BigEndian.Uint16(b)), int(int16(binary.BigEndian.Uint16(b[2:])))
	sign, scale := binary.BigEndian.Uint16(b[4:]), int(binary.BigEndian.Uint16(b[6:]))
	digits, err := r.take(2 * count)
	if err != nil || scale > 0x3FFF {
		return errNotRead
	}
	group := func(i int) int {
		if i < 0 || i >= count {
			return 0
		}
		return int(binary.BigEndian.Uint16(digits[2*i:]))
	}
	for i := range count {
		if group(i) > 9999 {
			return errNotRead
		}
	}
	switch sign {
	case 0xC000:
		return r.write("NaN")
	case 0xD000:
		return r.write("Infinity")
	case 0xF000:
		return r.write("-Infinity")
	case 0x4000:
		r.out.WriteString("-")
	case 0:
	default:
		return errNotRead
	}
	first := 0 // a fraction alone has no group in front of the point
	if weight >= 0 {
		first = group(0)
	}
	r.out.WriteString(strconv.Itoa(first))
	for i := 1; i <= weight; i++ {
		if err := r.write(fmt.Sprintf("%04d", group(i))); err != nil {
			return err
		}
	}
	if scale == 0 {
		return nil
	}
	r.out.WriteString(".")
	for i, left := weight+1, scale; left > 0; i, left = i+1, left-4 {
		if err := r.write(fmt.Sprintf("%04d", group(i))[:min(4, left)]); err != nil {
			return err
		}
	}
	return nil
}

// epoch is where PostgreSQL's dates begin, in seconds of Unix.
const epoch = 946684800

// day is the date of a moment in UTC, and what stands behind the time of a year
// before our own era.
func day(t time.Time) (date, era string) {
	year := t.Year()
	if year <= 0 {
		year, era = 1-year, " BC"
	}
	return fmt.Sprintf("%04d-%02d-%02d", year, t.Month(), t.Day()), era
}

func (r *valueReader) date() error {
	n, err := r.int32()
	switch {
	case err != nil:
		return err
	case n == math.MaxInt32:
		return r.write("infinity")
	case n == math.MinInt32:
		return r.write("-infinity")
	}
	date, era := day(time.Unix(epoch+int64(n)*86400, 0).UTC())
	return r.write(date + era)
}

// moment is a timestamp: microseconds from the epoch.
func (r *valueReader) moment(zone bool) error {
	n, err := r.int64()
	switch {
	case err != nil:
		return err
	case n == math.MaxInt64:
		return r.write("infinity")
	case n == math.MinInt64:
		return r.write("-infinity")
	}
	const perDay = 86_400_000_000
	days, left := n/perDay, n%perDay
	if left < 0 {
		days, left = days-1, left+perDay
	}
	date, era := day(time.Unix(epoch+days*86400, 0).UTC())
	r.out.WriteString(date + " ")
	if err := r.clock(left); err != nil {
		return err
	}
	if zone {
		era = "+00" + era
	}
	return r.write(era)
}

// clock is a time of day, up to 24:00:00.
func (r *valueReader) clock(us int64) error {
	if us < 0 || us > 86_400_000_000 {
		return errNotRead
	}
	return r.write(clockText(uint64(us)))
}

func clockText(us uint64) string {
	text := fmt.Sprintf("%02d:%02d:%02d", us/3_600_000_000, us/60_000_000%60, us/1_000_000%60)
	if us %= 1_000_000; us > 0 {
		text += fmt.Sprintf(".%06d", us)
	}
	return text
}

// clockWithZone has its zone in seconds west of Greenwich behind the time.
func (r *valueReader) clockWithZone() error {
	us, err := r.int64()
	if err != nil {
		return err
	}
	west, err := r.int32()
	if err != nil || west <= -16*3600 || west >= 16*3600 {
		return errNotRead
	}
	if err := r.clock(us); err != nil {
		return err
	}
	sign := "+"
	if west > 0 {
		sign = "-"
	} else {
		west = -west
	}
	return r.write(fmt.Sprintf("%s%02d:%02d:%02d", sign, west/3600, west/60%60, west%60))
}

// interval: every part has its sign, so that no IntervalStyle reads another one.
func (r *valueReader) interval() error {
	us, err := r.int64()
	if err != nil {
		return err
	}
	days, err := r.int32()
	if err != nil {
		return err
	}
	months, err := r.int32()
	if err != nil {
		return err
	}
	if days == math.MaxInt32 || days == math.MinInt32 || us == math.MinInt64 {
		return errNotRead // infinity, or a number of days, depending on the server
	}
	sign, abs := "+", uint64(us)
	if us < 0 {
		sign, abs = "-", uint64(-us)
	}
	return r.write(fmt.Sprintf("%+d mons %+d days %s%s", months, days, sign, clockText(abs)))
}

// address: family, bits of the network, whether it is a cidr, length, bytes.
func (r *valueReader) address(kind string) error {
	b, err := r.take(4)
	if err != nil {
		return err
	}
	size := map[byte]int{2: 4, 3: 16}[b[0]]
	raw, err := r.take(int(b[3]))
	if err != nil || size == 0 || len(raw) != size || int(b[1]) > 8*size {
		return errNotRead
	}
	addr, _ := netip.AddrFromSlice(raw)
	if kind == "cidr" && netip.PrefixFrom(addr, int(b[1])).Masked().Addr() != addr {
		return errNotRead
	}
	return r.write(addr.String() + "/" + strconv.Itoa(int(b[1])))
}

func (r *valueReader) bits() error {
	count, err := r.int32()
	if err != nil || count < 0 {
		return errNotRead
	}
	b, err := r.take((count + 7) / 8)
	if err != nil {
		return err
	}
	for i := range count {
		if err := r.write(string('0' + b[i/8]>>(7-i%8)&1)); err != nil {
			return err
		}
	}
	return nil
}

// geometricTypes are those of a fixed count of numbers; # stands for one.
var geometricTypes = map[string]string{
	"point": "(#,#)", "lseg": "[(#,#),(#,#)]", "box": "(#,#),(#,#)", "line": "{#,#,#}", "circle": "<(#,#),#>",
}

func (r *valueReader) numbers(form string) error {
	for _, c := range form {
		err := error(nil)
		if c == '#' {
			err = r.float8()
		} else {
			err = r.write(string(c))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (r *valueReader) points(kind string) error {
	opening, closing := "(", ")"
	if kind == "path" {
		b, err := r.take(1)
		if err != nil || b[0] > 1 {
			return errNotRead
		}
		if b[0] == 0 {
			opening, closing = "[", "]"
		}
	}
	count, err := r.int32()
	if err != nil || count < 1 {
		return errNotRead
	}
	for i := range count {
		if i > 0 {
			opening = ","
		}
		if err := r.numbers(opening + "(#,#)"); err != nil {
			return err
		}
	}
	return r.write(closing)
}

// inner reads the value of n bytes that is part of another one, and writes its text
// in double quotes, as arrays and ranges take every text.
func (r *valueReader) inner(kind string, n int) error {
	b, err := r.take(n)
	if err != nil {
		return err
	}
	text, whole, ok := binaryText(kind, b)
	if !ok {
		return errNotRead
	}
	if err := r.write(`"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(text)); err != nil {
		return err
	}
	if !whole {
		return errLong
	}
	return r.write(`"`)
}

// array: dimensions, whether there are NULLs, the element's type, then length and
// lower bound of each dimension.
func (r *valueReader) array(elem string) error {
	dims, err := r.int32()
	if err != nil || dims < 0 || dims > 6 {
		return errNotRead
	}
	head, err := r.take(8)
	if err != nil || binary.BigEndian.Uint32(head) > 1 || pgexec.TypeLabel(binary.BigEndian.Uint32(head[4:])) != elem {
		return errNotRead
	}
	lengths, total, bounds, plain := make([]int, dims), 1, "", true
	for i := range lengths {
		n, err := r.int32()
		if err != nil || n < 0 {
			return errNotRead
		}
		lower, err := r.int32()
		if err != nil || lower+n > math.MaxInt32 {
			return errNotRead
		}
		lengths[i] = n
		bounds += fmt.Sprintf("[%d:%d]", lower, lower+n-1)
		plain = plain && lower == 1
		if total *= n; total > len(r.rest) { // each element has four bytes at least
			return errNotRead
		}
	}
	if dims == 0 || total == 0 {
		return r.write("{}")
	}
	if !plain {
		r.out.WriteString(bounds + "=")
	}
	delim := ","
	if elem == "box" {
		delim = ";"
	}
	for i := range total {
		// how many dimensions begin with this element, and end with it
		begin, end := 0, 0
		for size, d := 1, dims-1; d >= 0; d-- {
			size *= lengths[d]
			if i%size == 0 {
				begin++
			}
			if (i+1)%size == 0 {
				end++
			}
		}
		if i > 0 {
			r.out.WriteString(delim)
		}
		if err := r.write(strings.Repeat("{", begin)); err != nil {
			return err
		}
		n, err := r.int32()
		switch {
		case err != nil:
			return err
		case n == -1:
			err = r.write("NULL")
		default:
			err = r.inner(elem, n)
		}
		if err != nil {
			return err
		}
		if err := r.write(strings.Repeat("}", end)); err != nil {
			return err
		}
	}
	return nil
}

// rangeTypes are the built-in ranges and what they range over.
var rangeTypes = map[string]string{
	"int4range": "int4", "int8range": "int8", "numrange": "numeric", "tsrange": "timestamp", "tstzrange": "timestamptz", "daterange": "date",
}

// The flags of a range.
const (
	rangeEmpty = 1 << iota
	rangeLowerIn
	rangeUpperIn
	rangeLowerInf
	rangeUpperInf
)

func (r *valueReader) span(elem string) error {
	b, err := r.take(1)
	switch {
	case err != nil || b[0] >= 1<<5:
		return errNotRead
	case b[0]&rangeEmpty != 0:
		return r.write("empty")
	}
	bound := func(infinite byte) error {
		if b[0]&infinite != 0 {
			return nil
		}
		n, err := r.int32()
		if err != nil {
			return err
		}
		return r.inner(elem, n)
	}
	opening, closing := "(", ")"
	if b[0]&(rangeLowerIn|rangeLowerInf) == rangeLowerIn {
		opening = "["
	}
	if b[0]&(rangeUpperIn|rangeUpperInf) == rangeUpperIn {
		closing = "]"
	}
	r.out.WriteString(opening)
	if err := bound(rangeLowerInf); err != nil {
		return err
	}
	r.out.WriteString(",")
	if err := bound(rangeUpperInf); err != nil {
		return err
	}
	return r.write(closing)
}

func (r *valueReader) multirange(elem string) error {
	count, err := r.int32()
	if err != nil || count < 0 || elem == "" {
		return errNotRead
	}
	r.out.WriteString("{")
	for i := range count {
		if i > 0 {
			r.out.WriteString(",")
		}
		n, err := r.int32()
		if err != nil {
			return err
		}
		b, err := r.take(n)
		if err != nil {
			return err
		}
		one := &valueReader{rest: b}
		if err = one.span(elem); err == nil && len(one.rest) > 0 {
			err = errNotRead
		}
		if err != nil && !errors.Is(err, errLong) {
			return err
		}
		if longer := r.write(one.out.String()); longer != nil {
			return longer
		} else if err != nil {
			return err
		}
	}
	return r.write("}")
}
