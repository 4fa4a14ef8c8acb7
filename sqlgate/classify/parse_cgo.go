package classify

/*
#cgo CFLAGS: -O2 -std=gnu11 -D_GNU_SOURCE
#cgo noescape parse_text
#cgo nocallback parse_text
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <pthread.h>

// What follows declares the inside of pg_query v5.1.0 (pg_query_internal.h,
// pg_query_fingerprint.h, pg_query_outfuncs.h): functions that its public ones
// are made of and that its objects export. They are weak, so that this package
// links by itself and a module without them is told at start, not by a crash.

typedef struct {
	char *message;
	char *funcname;
	char *filename;
	int lineno;
	int cursorpos;
	char *context;
} pg_error;

typedef struct {
	void *tree;
	char *stderr_buffer;
	pg_error *error;
} pg_tree;

extern void *pg_query_enter_memory_context(void) __attribute__((weak));
extern void pg_query_exit_memory_context(void *) __attribute__((weak));
extern pg_tree pg_query_raw_parse(const char *, int) __attribute__((weak));
extern char *pg_query_nodes_to_json(const void *) __attribute__((weak));
extern uint64_t pg_query_fingerprint_node(const void *) __attribute__((weak));
extern void pg_query_free_error(pg_error *) __attribute__((weak));

static int parser_linked(void) {
	return pg_query_enter_memory_context && pg_query_exit_memory_context && pg_query_raw_parse
		&& pg_query_nodes_to_json && pg_query_fingerprint_node && pg_query_free_error;
}

enum { MESSAGE_BYTES = 512 };

// An answer tells what became of one text. It holds no pointer to Go's memory.
typedef struct {
	size_t len;           // length of the JSON
	char *large;          // malloc'ed JSON where it is longer than the room lent; the caller frees it
	uint64_t fingerprint;
	int failed;           // 1: message and cursor hold the parser's error; 2: out of memory
	int cursor;           // characters from 1, 0 unknown
	char message[MESSAGE_BYTES];
} answer;

// copy_json takes the tree's JSON out of the parser's memory.
static void copy_json(const char *json, char *room, size_t size, answer *a) {
	a->len = strlen(json);
	if (a->len > size)
		room = a->large = malloc(a->len);
	if (room == NULL) {
		a->failed = 2;
		return;
	}
	memcpy(room, json, a->len);
}

// parse_text makes the tree once and takes JSON and fingerprint from it. The
// error is copied before the memory context that may hold it is left.
static void parse_text(const char *text, char *room, size_t size, answer *a) {
	a->len = 0;
	a->large = NULL;
	a->failed = 0;
	void *memory = pg_query_enter_memory_context();
	pg_tree t = pg_query_raw_parse(text, 0);
	if (t.error != NULL) {
		a->failed = 1;
		a->cursor = t.error->cursorpos;
		strncpy(a->message, t.error->message, MESSAGE_BYTES - 1);
		pg_query_free_error(t.error);
	} else {
		copy_json(pg_query_nodes_to_json(t.tree), room, size, a);
		a->fingerprint = pg_query_fingerprint_node(t.tree);
	}
	free(t.stderr_buffer);
	pg_query_exit_memory_context(memory);
}

// thread_stack gives the bytes of stack that a new thread gets.
static size_t thread_stack(void) {
	pthread_attr_t attr;
	size_t size = 0;
	if (pthread_getattr_default_np(&attr) == 0) {
		pthread_attr_getstacksize(&attr, &size);
		pthread_attr_destroy(&attr);
	}
	return size;
}
*/
import "C"

import (
	"errors"
	"strings"
	"sync"
	"unsafe"

	_ "github.com/pganalyze/pg_query_go/v5/parser" // the C library, and its start

	"writegate/commands/fault"
)

// parserLinked tells whether the C functions that parse_text calls are there.
func parserLinked() error {
	if C.parser_linked() == 0 {
		return errors.New("classify: this build lacks functions of pg_query v5.1.0")
	}
	return nil
}

// threadStack gives the stack of a new thread in bytes. Threads take the soft
// limit of the moment when the process was executed, and 2 MiB if it was unlimited.
func threadStack() uint64 { return uint64(C.thread_stack()) }

// A parsed is the tree of a text as pg_query's JSON, and its fingerprint. JSON
// lies in memory that is used again after release: nothing may keep a part of it.
type parsed struct {
	JSON        []byte
	Fingerprint string
	room        *parserRoom
	large       unsafe.Pointer
}

// release gives the memory of the JSON back.
func (p *parsed) release() {
	C.free(p.large)
	if p.room != nil {
		parserRooms.Put(p.room)
	}
	*p = parsed{}
}

// A parserRoom is what one call of the parser reads from and writes into.
type parserRoom struct {
	text   []byte
	json   []byte
	answer C.answer
}

// jsonRoom holds the tree of an ordinary statement; longer ones come in memory
// of their own.
const jsonRoom = 64 << 10

var parserRooms = sync.Pool{New: func() any { return &parserRoom{json: make([]byte, jsonRoom)} }}

// parseTree parses a text that the guard let pass: one call of C for the tree,
// its JSON and its fingerprint. The caller releases what it gets.
func parseTree(sql string) (parsed, *fault.Fault) {
	r := parserRooms.Get().(*parserRoom)
	r.text = append(append(r.text[:0], sql...), 0)
	C.parse_text((*C.char)(unsafe.Pointer(&r.text[0])), (*C.char)(unsafe.Pointer(&r.json[0])), jsonRoom, &r.answer)
	if r.answer.failed != 0 {
		f := answerFault(&r.answer, sql)
		parserRooms.Put(r)
		return parsed{}, f
	}
	p := parsed{JSON: r.json[:min(r.answer.len, jsonRoom)], Fingerprint: fingerprintText(uint64(r.answer.fingerprint)), room: r}
	if p.large = unsafe.Pointer(r.answer.large); p.large != nil {
		p.JSON = unsafe.Slice((*byte)(p.large), int(r.answer.len))
	}
	return p, nil
}

func answerFault(a *C.answer, sql string) *fault.Fault {
	if a.failed == 1 {
		message := strings.ToValidUTF8(C.GoString(&a.message[0]), "")
		return parserFault(message, int(a.cursor), sql)
	}
	return fault.New(fault.Internal, "The service has no memory left for the statement. Send it again.")
}

// fingerprintText prints a fingerprint as pg_query does: 16 hexadecimal digits.
func fingerprintText(n uint64) string {
	const digits = "0123456789abcdef"
	var b [16]byte
	for i := len(b) - 1; i >= 0; i-- {
		b[i] = digits[n&15]
		n >>= 4
	}
	return string(b[:])
}
