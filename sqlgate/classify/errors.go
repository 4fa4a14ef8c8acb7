package classify

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"writegate/commands/fault"
)

// Values of details.limit.
const (
	limitSQLBytes         = "sql_bytes"
	limitCommentDepth     = "comment_depth"
	limitLexerWork        = "lexer_work"
	limitOperatorLength   = "operator_length"
	limitBracketDepth     = "bracket_depth"
	limitSharedSource     = "shared_source"
	limitTreeDepth        = "tree_depth"
	limitQueryLevels      = "query_levels"
	limitQueriesCopied    = "queries_copied"
	limitCopiedNodes      = "copied_nodes"
	limitJoined           = "joined_relations"
	limitWindows          = "windows"
	limitGroupingSets     = "grouping_sets"
	limitAggregates       = "aggregates"
	limitConditions       = "conditions"
	limitGroupingKeys     = "grouping_keys"
	limitKeys             = "sort_keys"
	limitKeyNodes         = "key_nodes"
	limitEqualNodes       = "equal_nodes"
	limitExplained        = "explained_columns"
	limitSorted           = "sorted_aggregates"
	limitAlternatives     = "alternatives"
	limitAlternativePairs = "alternative_pairs"
	limitLookups          = "names_looked_for"
	limitColumns          = "result_columns"
	limitParserStack      = "parser_stack"
	limitParserCPU        = "parser_cpu_ms"
	limitParserDied       = "parser_died"
	limitParserWait       = "parser_wait"
)

func refuseSize(got, limit int) *fault.Fault {
	return fault.New(fault.OversizedSQL, "The SQL text has %d bytes, the limit is %d (GATE_MAX_SQL_BYTES). Send it in parts.", got, limit).
		With("limit", limitSQLBytes).With("got", got).With("max", limit)
}

func refuseEmpty() *fault.Fault {
	return fault.New(fault.EmptySQL, "The SQL text holds no statement. Send exactly one.")
}

func refuseText(message string, at int) *fault.Fault {
	return fault.New(fault.ParserError, "%s", message).With("position", at)
}

func refuseUnterminated(what string, at int) *fault.Fault {
	return fault.New(fault.ParserError, "The SQL text ends inside a %s that begins at byte %d. Close it.", what, at).With("position", at)
}

func refuseAmbiguous(at int) *fault.Fault {
	return fault.New(fault.ParserUnsupportedSyntax, "The string constant at byte %d goes on behind a comment. Remove the comment or write one constant.", at).With("position", at)
}

// refuseLimit is the answer to a text that the parser is not given, or a tree
// that is not walked. position is left out where there is none (at < 0).
func refuseLimit(limit string, at, got, limitValue int) *fault.Fault {
	advice := "Simplify the statement."
	if limit == limitCopiedNodes {
		advice = "The database would write its expressions into each other that often, or keep that many ways to join: columns of subqueries, what stands before BETWEEN and IN, and many relations of a query. Where columns of a subquery are used several times, write AS MATERIALIZED behind the name of the CTE, or OFFSET 0 behind the subquery."
	}
	if limit == limitSharedSource {
		advice = "SET (a, b, ...) = source counts its source once for each column, since the parser repeats it for each. Set fewer columns at once, or take a shorter source."
	}
	f := fault.New(fault.ParserUnsupportedSyntax, "The SQL text passes the parser's limit %s: %d, at most %d are taken. %s", limit, got, limitValue, advice).
		With("limit", limit).With("got", got).With("max", limitValue)
	if at >= 0 {
		f = f.With("position", at)
	}
	return f
}

// maxNear bounds how much of the text a parser error repeats, in bytes.
const maxNear = 40

// parserFault turns an error of PostgreSQL's parser into a fault. The server's
// message repeats the text that it stumbled over, which may be a constant (a
// password, a connection string); the fault names such a token by its kind.
func parserFault(message string, cursor int, sql string) *fault.Fault {
	code := fault.ParserError
	if isUnsupported(message) {
		code = fault.ParserUnsupportedSyntax
	}
	reason, _, _ := strings.Cut(message, " at or near ")
	reason = cutAt(reason, 200)
	at, advice := len(sql), "Correct it."
	if cursor > 0 {
		at = byteOffset(sql, cursor)
	}
	if newer := newerAt(sql, at); newer != nil {
		advice = fmt.Sprintf("This looks like %s, which came with PostgreSQL %s; the gate reads the grammar of 16, whatever the server's. %s", newer.name, newer.since, newer.instead)
	}
	switch {
	case cursor <= 0:
		return fault.New(code, "The parser of PostgreSQL 16 refuses the statement: %s. %s", reason, advice)
	case strings.HasSuffix(reason, " at end of input"):
		return fault.New(code, "The parser of PostgreSQL 16 refuses the statement: %s. %s", reason, advice).With("position", at)
	}
	return fault.New(code, "The parser of PostgreSQL 16 refuses the statement: %s near %s (byte %d). %s", reason, nearText(sql, at), at, advice).With("position", at)
}

// isUnsupported knows the errors that tell of the parser's limits and not of
// the client's mistake.
func isUnsupported(message string) bool {
	for _, part := range [...]string{"memory exhausted", "operator too long", "not yet implemented", "is not supported"} {
		if strings.Contains(message, part) {
			return true
		}
	}
	return false
}

// byteOffset turns the parser's position, in characters from 1, into bytes from 0.
func byteOffset(sql string, cursor int) int {
	for i := range sql {
		if cursor--; cursor == 0 {
			return i
		}
	}
	return len(sql)
}

// nearText names the token at a byte offset.
func nearText(sql string, at int) string {
	l := newLexer(sql)
	behind := "" // the token before
	for ; ; behind = l.src[l.start:l.pos] {
		kind := l.next()
		switch {
		case kind == tokenEnd && l.pos == len(sql):
			return "the end"
		case l.pos <= at:
			continue
		case kind == tokenNumber:
			return "a number"
		case kind.isLiteral():
			return "a string constant"
		case strings.EqualFold(behind, "password"): // whose quotes were forgotten
			return "the word behind PASSWORD"
		default:
			return `"` + cutAt(sql[l.start:l.pos], maxNear) + `"`
		}
	}
}

// cutAt shortens s to at most n bytes without breaking a character.
func cutAt(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}
