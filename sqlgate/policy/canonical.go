package policy

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Digest is the SHA-256 of bytes in 64 lower-case hex digits, the form of
// every hash on the policy's pages.
func Digest(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// CanonicalJSON is the one form in which a structure is hashed: UTF-8, keys
// sorted by bytes, no white space, the escapes of the log's JSON form (quote,
// backslash and bytes below 0x20, nothing else), whole numbers only. A number
// with a fraction and a text that is not UTF-8 have no canonical form and are
// errors. Types other than plain maps, lists, texts, numbers and truth values
// go by way of encoding/json.
func CanonicalJSON(v any) ([]byte, error) {
	return appendCanonical(nil, v)
}

func appendCanonical(dst []byte, v any) ([]byte, error) {
	switch v := v.(type) {
	case nil:
		return append(dst, "null"...), nil
	case bool:
		return strconv.AppendBool(dst, v), nil
	case string:
		return appendCanonicalText(dst, v)
	case int:
		return strconv.AppendInt(dst, int64(v), 10), nil
	case int64:
		return strconv.AppendInt(dst, v, 10), nil
	case uint64:
		return strconv.AppendUint(dst, v, 10), nil
	case json.Number:
		return appendCanonicalNumber(dst, v)
	case []string:
		return appendCanonicalList(dst, v)
	case []any:
		return appendCanonicalList(dst, v)
	case map[string]any:
		return appendCanonicalMap(dst, v)
	default:
		return appendCanonicalOther(dst, v)
	}
}

func appendCanonicalList[T any](dst []byte, list []T) ([]byte, error) {
	dst = append(dst, '[')
	var err error
	for i, item := range list {
		if i > 0 {
			dst = append(dst, ',')
		}
		if dst, err = appendCanonical(dst, item); err != nil {
			return nil, err
		}
	}
	return append(dst, ']'), nil
}

func appendCanonicalMap(dst []byte, m map[string]any) ([]byte, error) {
	keys := make([]string, 0, len(m))
	for key := range m {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	dst = append(dst, '{')
	var err error
	for i, key := range keys {
		if i > 0 {
			dst = append(dst, ',')
		}
		if dst, err = appendCanonicalText(dst, key); err != nil {
			return nil, err
		}
		if dst, err = appendCanonical(append(dst, ':'), m[key]); err != nil {
			return nil, err
		}
	}
	return append(dst, '}'), nil
}

func appendCanonicalText(dst []byte, s string) ([]byte, error) {
	if !utf8.ValidString(s) {
		return nil, fmt.Errorf("a text is not valid UTF-8: %q", s)
	}
	const hexDigits = "0123456789abcdef"
	dst = append(dst, '"')
	for i := range len(s) {
		switch c := s[i]; {
		case c == '"' || c == '\\':
			dst = append(dst, '\\', c)
		case c < 0x20:
			dst = append(dst, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
		default:
			dst = append(dst, c)
		}
	}
	return append(dst, '"'), nil
}

// appendCanonicalNumber takes whole numbers in their one shortest form.
func appendCanonicalNumber(dst []byte, n json.Number) ([]byte, error) {
	if i, err := strconv.ParseInt(string(n), 10, 64); err == nil {
		return strconv.AppendInt(dst, i, 10), nil
	}
	if u, err := strconv.ParseUint(string(n), 10, 64); err == nil {
		return strconv.AppendUint(dst, u, 10), nil
	}
	return nil, fmt.Errorf("the number %s is not a whole number of 64 bits", n)
}

// appendCanonicalOther takes everything else by way of its JSON form.
func appendCanonicalOther(dst []byte, v any) ([]byte, error) {
	if f, ok := v.(float64); ok {
		if f != math.Trunc(f) || math.Abs(f) >= 1<<53 {
			return nil, fmt.Errorf("the number %v is not a whole number", f)
		}
		return strconv.AppendInt(dst, int64(f), 10), nil
	}
	encoded, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("a %T has no JSON form: %w", v, err)
	}
	plain, err := parseJSON(encoded)
	if err != nil {
		return nil, err
	}
	return appendCanonical(dst, plain)
}

func parseJSON(encoded []byte) (any, error) {
	decoder := json.NewDecoder(bytes.NewReader(encoded))
	decoder.UseNumber()
	var plain any
	if err := decoder.Decode(&plain); err != nil {
		return nil, fmt.Errorf("reading JSON: %w", err)
	}
	if _, err := decoder.Token(); err != io.EOF {
		return nil, fmt.Errorf("reading JSON: there is more after the value")
	}
	return plain, nil
}

// NormalHash takes the optional sha256: off a hash that a request names.
func NormalHash(hash string) string { return strings.TrimPrefix(hash, "sha256:") }
