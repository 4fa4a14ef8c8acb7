package event

import "fmt"

// AppendValue appends v to dst in the canonical encoding, outside of any
// record. Other evidence than events, such as a receipt, is written with it,
// so that all evidence has one encoding. On an error, which wraps
// ErrNotEncodable, dst comes back as it was.
func AppendValue(dst []byte, v Value) ([]byte, error) {
	w := writers.Get().(*writer)
	defer w.release()
	w.buf = dst
	w.value(&v, 0)
	if w.err != nil {
		return dst, fmt.Errorf("%w: %w", ErrNotEncodable, w.err)
	}
	return w.buf, nil
}

// ParseValue reads what AppendValue wrote and is as strict as Decode: all of b
// is one value in its one form, or the error wraps ErrRecord.
func ParseValue(b []byte) (Value, error) {
	r := reader{record: string(b)}
	var v Value
	r.value(&v, 0)
	if err := r.end(); err != nil {
		return Value{}, err
	}
	again, err := AppendValue(make([]byte, 0, len(b)), v)
	if err != nil {
		return Value{}, fmt.Errorf("%w: %w", ErrRecord, err)
	}
	if string(again) != string(b) {
		return Value{}, fmt.Errorf("%w: not in its canonical form", ErrRecord)
	}
	return v, nil
}
