package sqlgate

import "reflect"

// inMemory is about how many bytes a value takes in memory, with everything that it
// leads to: what a connection may hold is bounded as it lies there, and not by the
// bytes of texts and values. What is reached twice counts twice.
func inMemory(v any) int64 {
	r := reflect.ValueOf(v)
	if !r.IsValid() {
		return 0
	}
	return int64(r.Type().Size()) + behind(r)
}

// behind is what a value leads to, without the value itself.
func behind(v reflect.Value) (bytes int64) {
	switch v.Kind() {
	case reflect.String:
		return int64(v.Len())
	case reflect.Slice:
		bytes = int64(v.Cap()) * int64(v.Type().Elem().Size())
		if leads(v.Type().Elem()) {
			for i := range v.Len() {
				bytes += behind(v.Index(i))
			}
		}
	case reflect.Map:
		const slot = 16 // of the table around an entry
		bytes = int64(v.Len()) * (int64(v.Type().Key().Size()) + int64(v.Type().Elem().Size()) + slot)
		for i := v.MapRange(); i.Next(); {
			bytes += behind(i.Key()) + behind(i.Value())
		}
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() {
			bytes = int64(v.Elem().Type().Size()) + behind(v.Elem())
		}
	case reflect.Struct:
		for i := range v.NumField() {
			bytes += behind(v.Field(i))
		}
	}
	return bytes
}

// leads reports whether values of a type lead to anything.
func leads(t reflect.Type) bool {
	return t.Kind() > reflect.Complex128
}
