package httpd

import (
	"reflect"
	"strings"
	"sync"
)

// fieldCache remembers the names of each request type, so that reflection over
// its tags happens once.
var fieldCache sync.Map // reflect.Type -> map[string]int

// fieldsOf gives the index of each field that has a json tag. A field without
// one, or tagged "-", is not part of the body.
func fieldsOf(t reflect.Type) map[string]int {
	if cached, ok := fieldCache.Load(t); ok {
		return cached.(map[string]int)
	}
	fields := make(map[string]int, t.NumField())
	for i := range t.NumField() {
		name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		if name != "" && name != "-" {
			fields[name] = i
		}
	}
	cached, _ := fieldCache.LoadOrStore(t, fields)
	return cached.(map[string]int)
}
