package pgexec

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Bounds of one reading of the catalogues: the server gives each of its three queries up behind
// the first, and a lock that somebody holds on a view's tables behind the second.
const (
	catalogueTime = 30 * time.Second
	catalogueLock = 2 * time.Second
)

// relationsSQL has a row of JSON for each relation of the users', as package catalog reads it
// (catalog.Entry). Only catalogues are read, and PostgreSQL's own functions print them, so
// nothing of a user's runs; pg_get_viewdef locks what a view reads, shared. Pinned objects
// have no entries in pg_depend, so each call that stands there is one of somebody's; what an extension brought, or comes
// with a range, is not told of. Of PostgreSQL's own functions those that are not immutable are told of, as the server keeps an
// expression (funcid of primnodes.h, the same in 15 to 18), but for the plain ones of defaults. The types of columns are followed through sixteen others, and what lies deeper counts as a call of ?.?.
// A view whose stored query takes more than $2 bytes is not printed, and counts as one that could not be judged.
// A read of a table with row security may call what any policy on it calls, and so may a write.
// So does a read of a column call what works with its type: operators, casts, support of
// operator classes, input and output. Which of them a text means its words do not tell.
var relationsSQL = `
WITH RECURSIVE rel AS (
 SELECT c.oid, n.nspname || '.' || c.relname AS name, c.relkind, c.relrowsecurity, c.relispartition FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
 WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f') AND n.nspname <> 'information_schema' AND n.nspname NOT LIKE 'pg\_%'),
brought AS (SELECT d.classid, d.objid FROM pg_depend AS d WHERE d.deptype = 'e' AND d.classid IN ('pg_proc'::regclass, 'pg_operator'::regclass)),
fn AS (SELECT p.oid, n.nspname || '.' || p.proname AS name, p.prolang = 12 AND p.prosrc IN ('range_constructor2', 'range_constructor3', 'multirange_constructor0', 'multirange_constructor1', 'multirange_constructor2') AS comes FROM pg_proc AS p JOIN pg_namespace AS n ON n.oid = p.pronamespace WHERE p.oid >= 16384),
ours AS (SELECT 'pg_proc'::regclass::oid AS classid, fn.oid AS objid, fn.name FROM fn WHERE NOT fn.comes AND NOT EXISTS (SELECT FROM brought AS b WHERE b.classid = 'pg_proc'::regclass AND b.objid = fn.oid)
 UNION ALL SELECT 'pg_operator'::regclass, o.oid, fn.name FROM pg_operator AS o JOIN fn ON fn.oid = o.oprcode WHERE NOT EXISTS (SELECT FROM brought AS b WHERE b.classid = 'pg_operator'::regclass AND b.objid = o.oid)),
of_columns AS (SELECT DISTINCT a.attrelid AS rel, a.atttypid AS type FROM pg_attribute AS a JOIN rel ON rel.oid = a.attrelid WHERE a.attnum > 0 AND NOT a.attisdropped AND a.atttypid >= 16384),
parts(type, part, depth) AS (SELECT DISTINCT type, type, 1 FROM of_columns
 UNION SELECT p.type, next.oid, p.depth + 1 FROM parts AS p JOIN pg_type AS t ON t.oid = p.part CROSS JOIN LATERAL (
  SELECT t.typelem AS oid UNION ALL SELECT t.typbasetype UNION ALL SELECT r.rngsubtype FROM pg_range AS r WHERE t.oid IN (r.rngtypid, r.rngmultitypid)
  UNION ALL SELECT a.atttypid FROM pg_attribute AS a WHERE t.typtype = 'c' AND a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped) AS next
 WHERE next.oid >= 16384 AND p.depth < 16),
works(part, name) AS (SELECT x.part, o.name FROM ours AS o JOIN pg_operator AS p ON o.classid = 'pg_operator'::regclass AND p.oid = o.objid CROSS JOIN LATERAL (VALUES (p.oprleft), (p.oprright)) AS x(part)
 UNION SELECT x.part, o.name FROM ours AS o JOIN (SELECT k.castsource AS part, k.castfunc::oid AS fn FROM pg_cast AS k UNION SELECT k.casttarget, k.castfunc FROM pg_cast AS k
   UNION SELECT a.amproclefttype, a.amproc FROM pg_amproc AS a UNION SELECT a.amprocrighttype, a.amproc FROM pg_amproc AS a
   UNION SELECT r.rngtypid, f.fn FROM pg_range AS r CROSS JOIN LATERAL (VALUES (r.rngcanonical::oid), (r.rngsubdiff)) AS f(fn)
   UNION SELECT t.oid, f.fn FROM pg_type AS t CROSS JOIN LATERAL (VALUES (t.typinput::oid), (t.typoutput), (t.typreceive), (t.typsend), (t.typmodin), (t.typmodout), (t.typsubscript)) AS f(fn) WHERE t.oid >= 16384) AS x
  ON o.classid = 'pg_proc'::regclass AND o.objid = x.fn),
said(rel, events, what, classid, objid) AS (
 SELECT d.adrelid, CASE WHEN a.attgenerated = '' THEN 4 ELSE 20 END, 'default', 'pg_attrdef'::regclass::oid, d.oid FROM pg_attrdef AS d JOIN pg_attribute AS a ON a.attrelid = d.adrelid AND a.attnum = d.adnum
 UNION ALL SELECT k.conrelid, 20, 'check', 'pg_constraint'::regclass, k.oid FROM pg_constraint AS k WHERE k.conrelid <> 0
 UNION ALL SELECT o.rel, 20, 'domain', 'pg_constraint'::regclass, k.oid FROM of_columns AS o JOIN parts AS p ON p.type = o.type JOIN pg_constraint AS k ON k.contypid = p.part
 UNION ALL SELECT o.rel, 4, 'domain', 'pg_type'::regclass, p.part FROM of_columns AS o JOIN parts AS p ON p.type = o.type
 UNION ALL SELECT t.tgrelid, t.tgtype::int4 & 60, 'trigger', 'pg_trigger'::regclass, t.oid FROM pg_trigger AS t WHERE t.tgqual IS NOT NULL AND NOT t.tgisinternal AND t.tgenabled NOT IN ('D', 'R')
 UNION ALL SELECT i.indrelid, 20, 'index', 'pg_class'::regclass, i.indexrelid FROM pg_index AS i
 UNION ALL SELECT p.partrelid, 20, 'partition key', 'pg_class'::regclass, p.partrelid FROM pg_partitioned_table AS p
 UNION ALL SELECT y.polrelid, 29, 'policy', 'pg_policy'::regclass, y.oid FROM pg_policy AS y JOIN rel ON rel.oid = y.polrelid WHERE rel.relrowsecurity
 UNION ALL SELECT w.ev_class, CASE w.ev_type WHEN '2' THEN 16 WHEN '3' THEN 4 WHEN '4' THEN 8 ELSE CASE rel.relkind WHEN 'v' THEN 29 ELSE 64 END END, CASE w.ev_type WHEN '1' THEN 'query' ELSE 'rule' END, 'pg_rewrite'::regclass, w.oid
  FROM pg_rewrite AS w JOIN rel ON rel.oid = w.ev_class WHERE w.ev_enabled NOT IN ('D', 'R')),
forms(rel, events, what, form) AS (
 SELECT s.rel, s.events, s.what, d.adbin::text FROM said AS s JOIN pg_attrdef AS d ON s.classid = 'pg_attrdef'::regclass AND d.oid = s.objid
 UNION ALL SELECT s.rel, s.events, s.what, k.conbin::text FROM said AS s JOIN pg_constraint AS k ON s.classid = 'pg_constraint'::regclass AND k.oid = s.objid
 UNION ALL SELECT s.rel, s.events, s.what, t.tgqual::text FROM said AS s JOIN pg_trigger AS t ON s.classid = 'pg_trigger'::regclass AND t.oid = s.objid
 UNION ALL SELECT s.rel, s.events, s.what, concat(i.indexprs::text, i.indpred::text) FROM said AS s JOIN pg_index AS i ON s.classid = 'pg_class'::regclass AND i.indexrelid = s.objid
 UNION ALL SELECT s.rel, s.events, s.what, p.partexprs::text FROM said AS s JOIN pg_partitioned_table AS p ON s.classid = 'pg_class'::regclass AND p.partrelid = s.objid
 UNION ALL SELECT s.rel, s.events, s.what, concat(y.polqual::text, y.polwithcheck::text) FROM said AS s JOIN pg_policy AS y ON s.classid = 'pg_policy'::regclass AND y.oid = s.objid
 UNION ALL SELECT s.rel, s.events, s.what, concat(w.ev_qual::text, w.ev_action::text) FROM said AS s JOIN pg_rewrite AS w ON s.classid = 'pg_rewrite'::regclass AND w.oid = s.objid WHERE s.what = 'rule'),
code AS (SELECT x.rel, json_agg(json_build_object('on', x.events, 'by', x.what, 'call', x.name, 'args', x.args) ORDER BY x.what COLLATE "C", x.name COLLATE "C", x.events, x.args) AS list FROM (
  SELECT DISTINCT s.rel, s.events, s.what, o.name, NULL::int AS args FROM said AS s JOIN pg_depend AS d ON d.classid = s.classid AND d.objid = s.objid JOIN ours AS o ON o.classid = d.refclassid AND o.objid = d.refobjid
  UNION SELECT o.rel, 29, 'type', w.name, NULL FROM of_columns AS o JOIN parts AS p ON p.type = o.type JOIN works AS w ON w.part = p.part
  UNION SELECT o.rel, 20, 'domain', '?.?', NULL FROM of_columns AS o JOIN parts AS p ON p.type = o.type WHERE p.depth = 16
  UNION SELECT f.rel, f.events, f.what, 'pg_catalog.' || p.proname, p.pronargs FROM forms AS f CROSS JOIN LATERAL regexp_matches(f.form, ':(?:funcid|aggfnoid|winfnoid) ([0-9]+)', 'g') AS m(found) JOIN pg_proc AS p ON p.oid = m.found[1]::oid
   WHERE p.oid < 16384 AND p.provolatile <> 'i' AND p.proname NOT IN ('nextval', 'now', 'clock_timestamp', 'statement_timestamp', 'transaction_timestamp', 'timezone', 'random', 'gen_random_uuid', 'current_setting')) AS x GROUP BY x.rel),
reads AS (SELECT y.polrelid AS rel, json_agg(DISTINCT r.name COLLATE "C") AS list FROM pg_policy AS y JOIN rel ON rel.oid = y.polrelid JOIN pg_depend AS d ON d.classid = 'pg_policy'::regclass AND d.objid = y.oid AND d.refclassid = 'pg_class'::regclass
  JOIN rel AS r ON r.oid = d.refobjid WHERE rel.relrowsecurity AND d.refobjid <> y.polrelid GROUP BY y.polrelid),
triggers AS (SELECT t.tgrelid AS rel, json_agg(json_build_object('on', t.tgtype::int4 & 60, 'call', fn.name, 'instead', t.tgtype::int4 & 64 <> 0, 'above', t.tgparentid <> 0,
   'of', (SELECT json_agg(a.attname ORDER BY a.attname COLLATE "C") FROM pg_attribute AS a WHERE a.attrelid = t.tgrelid AND a.attnum = ANY (t.tgattr))) ORDER BY fn.name COLLATE "C", t.tgtype, t.tgname COLLATE "C") AS list
  FROM pg_trigger AS t JOIN fn ON fn.oid = t.tgfoid WHERE NOT t.tgisinternal AND t.tgenabled NOT IN ('D', 'R') GROUP BY t.tgrelid),
rules AS (SELECT w.ev_class AS rel, json_agg(json_build_object('on', CASE w.ev_type WHEN '2' THEN 16 WHEN '3' THEN 4 ELSE 8 END, 'instead', w.is_instead,
   'names', (SELECT json_agg(DISTINCT n.name) FROM (SELECT r.name COLLATE "C" AS name FROM pg_depend AS d JOIN rel AS r ON r.oid = d.refobjid WHERE d.classid = 'pg_rewrite'::regclass AND d.objid = w.oid AND d.refclassid = 'pg_class'::regclass
    AND (d.refobjid <> w.ev_class OR (SELECT count(*) FROM regexp_matches(w.ev_action::text, concat(':rtekind 0 :relid ', w.ev_class, ' '), 'g')) > 2)) AS n)) ORDER BY w.rulename COLLATE "C") AS list
  FROM pg_rewrite AS w WHERE w.ev_type <> '1' AND w.ev_enabled NOT IN ('D', 'R') GROUP BY w.ev_class),
keys AS (SELECT i.indrelid AS rel, json_agg(DISTINCT a.attname::text COLLATE "C") AS list FROM pg_index AS i JOIN pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
  WHERE i.indisunique AND i.indimmediate AND i.indisvalid AND i.indisready AND i.indpred IS NULL AND i.indnkeyatts = 1 AND a.attnum > 0
   AND i.indcollation[0] = a.attcollation AND EXISTS (SELECT FROM pg_opclass AS o WHERE o.oid = i.indclass[0] AND o.opcdefault) GROUP BY i.indrelid),
derived AS (SELECT a.attrelid AS rel, json_agg(a.attname::text ORDER BY a.attname COLLATE "C") AS list FROM pg_attribute AS a WHERE a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated <> '' GROUP BY a.attrelid),
named AS (SELECT a.attrelid AS rel, json_agg(a.attname::text ORDER BY a.attname COLLATE "C") AS list FROM pg_attribute AS a WHERE a.attnum > 0 AND NOT a.attisdropped AND a.attname = ANY ($1) GROUP BY a.attrelid),
refers AS (SELECT k.conrelid AS rel, json_agg(json_build_object('to', rel.name, 'key', (SELECT json_agg(a.attname ORDER BY a.attname COLLATE "C") FROM pg_attribute AS a WHERE a.attrelid = k.confrelid AND a.attnum = ANY (k.confkey)),
   'on_delete', CASE k.confdeltype WHEN 'c' THEN 8 WHEN 'n' THEN 16 WHEN 'd' THEN 20 ELSE 0 END, 'on_update', CASE WHEN k.confupdtype IN ('c', 'n') THEN 16 WHEN k.confupdtype = 'd' THEN 20 ELSE 0 END) ORDER BY k.conname COLLATE "C", k.oid) AS list
  FROM pg_constraint AS k JOIN rel ON rel.oid = k.confrelid WHERE k.contype = 'f' AND k.conparentid = 0 GROUP BY k.conrelid),
split AS (SELECT p.partrelid AS rel, json_agg(COALESCE(a.attname, '*') ORDER BY k.at) AS list FROM pg_partitioned_table AS p CROSS JOIN LATERAL unnest(p.partattrs::int2[]) WITH ORDINALITY AS k(attnum, at)
  LEFT JOIN pg_attribute AS a ON a.attrelid = p.partrelid AND a.attnum = k.attnum GROUP BY p.partrelid),
told AS (SELECT x.rel, md5(string_agg(x.what, '; ' ORDER BY x.what COLLATE "C")) AS list FROM (
  SELECT w.ev_class AS rel, CASE WHEN pg_column_size(w.ev_action) > $2 THEN w.ev_action::text ELSE pg_get_ruledef(w.oid) END AS what FROM pg_rewrite AS w JOIN rel ON rel.oid = w.ev_class WHERE w.ev_type <> '1' AND w.ev_enabled NOT IN ('D', 'R')
  UNION ALL SELECT t.tgrelid, pg_get_triggerdef(t.oid) FROM pg_trigger AS t WHERE NOT t.tgisinternal AND t.tgenabled NOT IN ('D', 'R')
  UNION ALL SELECT y.polrelid, concat_ws(' ', y.polcmd, y.polpermissive, y.polroles::text, pg_get_expr(y.polqual, y.polrelid), '/', pg_get_expr(y.polwithcheck, y.polrelid)) FROM pg_policy AS y JOIN rel ON rel.oid = y.polrelid WHERE rel.relrowsecurity) AS x GROUP BY x.rel),
parents AS (SELECT i.inhrelid AS rel, json_agg(rel.name ORDER BY i.inhseqno) AS list FROM pg_inherits AS i JOIN rel ON rel.oid = i.inhparent GROUP BY i.inhrelid)
SELECT json_build_object('relation', rel.name, 'kind', rel.relkind, 'view', CASE WHEN rel.relkind IN ('v', 'm') THEN CASE WHEN EXISTS (SELECT FROM pg_rewrite AS w WHERE w.ev_class = rel.oid AND w.ev_type = '1' AND pg_column_size(w.ev_action) > $2) THEN ';' ELSE pg_get_viewdef(rel.oid) END END, 'code', code.list, 'triggers', triggers.list,
 'rules', rules.list, 'keys', keys.list, 'columns', named.list, 'refers', refers.list, 'parents', parents.list, 'part', rel.relispartition, 'split', split.list, 'derived', derived.list, 'reads', reads.list, 'told', told.list, 'oid', c.oid::int8, 'hashes', json_build_array(` + asTexts(definedBy) + `))::text
FROM rel JOIN pg_class AS c ON c.oid = rel.oid LEFT JOIN code ON code.rel = rel.oid LEFT JOIN triggers ON triggers.rel = rel.oid LEFT JOIN rules ON rules.rel = rel.oid LEFT JOIN keys ON keys.rel = rel.oid
 LEFT JOIN named ON named.rel = rel.oid LEFT JOIN refers ON refers.rel = rel.oid LEFT JOIN parents ON parents.rel = rel.oid LEFT JOIN split ON split.rel = rel.oid LEFT JOIN derived ON derived.rel = rel.oid LEFT JOIN reads ON reads.rel = rel.oid LEFT JOIN told ON told.rel = rel.oid`

func asTexts(expressions []string) string {
	return "(" + strings.Join(expressions, ")::text, (") + ")::text"
}

// shadowsSQL has the functions and operators of the schemas $1 that bear the name of one of
// PostgreSQL's: a text that names no schema may mean them. Of operators those that take
// types of PostgreSQL's alone; those of other types need a column of such a type. Any text
// may mean a cast from one type of PostgreSQL's to another, or what sorts and compares one.
const shadowsSQL = `
WITH spaces AS (SELECT n.oid, n.nspname FROM pg_namespace AS n WHERE n.nspname = ANY ($1))
SELECT DISTINCT json_build_object('call', s.nspname || '.' || p.proname)::text FROM spaces AS s JOIN pg_proc AS p ON p.pronamespace = s.oid
 WHERE EXISTS (SELECT FROM pg_proc AS b WHERE b.proname = p.proname AND b.pronamespace = 'pg_catalog'::regnamespace)
  AND NOT EXISTS (SELECT FROM pg_depend AS d WHERE d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND d.deptype = 'e')
UNION ALL SELECT DISTINCT json_build_object('operator', s.nspname || '.' || o.oprname)::text FROM spaces AS s JOIN pg_operator AS o ON o.oprnamespace = s.oid
 WHERE EXISTS (SELECT FROM pg_operator AS b WHERE b.oprname = o.oprname AND b.oprnamespace = 'pg_catalog'::regnamespace) AND o.oprleft < 16384 AND o.oprright < 16384
  AND NOT EXISTS (SELECT FROM pg_depend AS d WHERE d.classid = 'pg_operator'::regclass AND d.objid = o.oid AND d.deptype = 'e')
UNION ALL SELECT DISTINCT json_build_object('always', n.nspname || '.' || p.proname)::text FROM (
  SELECT k.castfunc AS fn FROM pg_cast AS k WHERE k.castsource < 16384 AND k.casttarget < 16384
  UNION SELECT a.amproc FROM pg_amproc AS a WHERE a.amproclefttype < 16384 AND a.amprocrighttype < 16384
  UNION SELECT o.oprcode FROM pg_amop AS a JOIN pg_operator AS o ON o.oid = a.amopopr WHERE a.amoplefttype < 16384 AND a.amoprighttype < 16384) AS x
 JOIN pg_proc AS p ON p.oid = x.fn AND p.oid >= 16384 JOIN pg_namespace AS n ON n.oid = p.pronamespace
 WHERE NOT EXISTS (SELECT FROM pg_depend AS d WHERE d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND d.deptype = 'e')`

// plainTypesSQL has the types of the schemas $1 that run no code of the users', whatever a text does with their values, each
// with what it is compared by: enums; domains without a check, ranges and multiranges over those and over types of
// PostgreSQL's that only answer; and composites of all these, and no others in them. Nobody has made a cast,
// an operator or support of an operator class for one of these, or for an array of it, whoever brought it; and no type of the session's own bears its name; none of
// its parts has a collation that a library knows. The cast of a range to its multirange comes with them.
var plainTypesSQL = `
WITH made AS (SELECT x.part FROM pg_operator AS o CROSS JOIN LATERAL (VALUES (o.oprleft), (o.oprright)) AS x(part) WHERE o.oid >= 16384 OR o.oprcode::oid >= 16384
 UNION SELECT x.part FROM pg_cast AS k CROSS JOIN LATERAL (VALUES (k.castsource), (k.casttarget)) AS x(part) WHERE k.oid >= 16384
  AND NOT EXISTS (SELECT FROM pg_proc AS p WHERE p.oid = k.castfunc AND p.prolang = 12 AND p.prosrc = 'multirange_constructor1')
 UNION SELECT x.part FROM pg_amproc AS a CROSS JOIN LATERAL (VALUES (a.amproclefttype), (a.amprocrighttype)) AS x(part) WHERE a.oid >= 16384 OR a.amproc::oid >= 16384
 UNION SELECT x.part FROM pg_opclass AS c CROSS JOIN LATERAL (VALUES (c.opcintype), (c.opckeytype)) AS x(part) WHERE c.oid >= 16384),
untouched AS (SELECT t.* FROM pg_type AS t WHERE t.oid >= 16384 AND t.typisdefined AND NOT EXISTS (SELECT FROM made WHERE made.part IN (t.oid, t.typarray)) AND NOT EXISTS (SELECT FROM pg_depend AS d WHERE d.classid = 'pg_type'::regclass AND d.objid = t.oid AND d.deptype = 'e')),
answers(oid) AS (SELECT t.oid FROM pg_type AS t WHERE t.oid < 16384 AND t.typnamespace = 'pg_catalog'::regnamespace AND t.typname IN ('bool', 'int2', 'int4', 'int8', 'float4', 'float8', 'numeric', 'text', 'varchar', 'bpchar', 'char', 'name', 'bytea', 'bit', 'varbit', 'money', 'oid',
   'date', 'time', 'timetz', 'timestamp', 'timestamptz', 'interval', 'uuid', 'json', 'jsonb', 'inet', 'cidr', 'macaddr', 'macaddr8', 'point', 'line', 'lseg', 'box', 'path', 'polygon', 'circle',
   'int4range', 'int8range', 'numrange', 'daterange', 'tsrange', 'tstzrange', 'int4multirange', 'int8multirange', 'nummultirange', 'datemultirange', 'tsmultirange', 'tstzmultirange')),
base(oid) AS (SELECT a.oid FROM answers AS a UNION SELECT t.typarray FROM answers AS a JOIN pg_type AS t ON t.oid = a.oid WHERE t.typarray <> 0 UNION SELECT t.oid FROM untouched AS t WHERE t.typtype = 'e' UNION SELECT t.typarray FROM untouched AS t WHERE t.typtype = 'e'),
spoken(oid) AS (SELECT c.oid FROM pg_collation AS c WHERE c.collprovider IN ('d', 'c') AND c.oid < 16384 UNION SELECT 0),
domains(oid, list) AS (SELECT t.oid, t.typarray FROM untouched AS t WHERE t.typtype = 'd' AND t.typbasetype IN (SELECT oid FROM base) AND t.typcollation IN (SELECT oid FROM spoken) AND NOT EXISTS (SELECT FROM pg_constraint AS k WHERE k.contypid = t.oid AND k.contype = 'c')),
ranges(oid, list, many, lists) AS (SELECT t.oid, t.typarray, m.oid, m.typarray FROM pg_range AS r JOIN untouched AS t ON t.oid = r.rngtypid JOIN untouched AS m ON m.oid = r.rngmultitypid
 WHERE r.rngsubtype IN (SELECT oid FROM base) AND r.rngcollation IN (SELECT oid FROM spoken) AND r.rngcanonical::oid < 16384 AND r.rngsubdiff::oid < 16384 AND r.rngsubopc < 16384),
flat(oid) AS (SELECT oid FROM base UNION SELECT oid FROM domains UNION SELECT list FROM domains UNION SELECT x.oid FROM ranges AS r CROSS JOIN LATERAL (VALUES (r.oid), (r.list), (r.many), (r.lists)) AS x(oid)),
rows(oid) AS (SELECT t.oid FROM untouched AS t JOIN pg_class AS c ON c.oid = t.typrelid AND c.relkind = 'c' WHERE NOT EXISTS (SELECT FROM pg_attribute AS a WHERE a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped AND (a.atttypid NOT IN (SELECT oid FROM flat) OR a.attcollation NOT IN (SELECT oid FROM spoken)))),
found AS (SELECT t.oid, n.nspname || '.' || t.typname AS name FROM untouched AS t JOIN pg_namespace AS n ON n.oid = t.typnamespace WHERE n.nspname = ANY ($1) AND t.typtype IN ('e', 'd', 'r', 'm', 'c') AND (t.oid IN (SELECT oid FROM flat) OR t.oid IN (SELECT oid FROM rows)) AND NOT EXISTS (SELECT FROM pg_type AS x WHERE x.typname = t.typname AND x.typnamespace = pg_my_temp_schema())
  AND n.nspname !~ '[.]' AND t.typname !~ '[.]' AND n.nspname NOT LIKE 'pg\_%')
SELECT json_build_object('plain', found.name, 'oid', t.oid::int8, 'hashes', json_build_array((` + typeDefinedBy + `)::text))::text FROM found JOIN pg_type AS t ON t.oid = found.oid`

// catalogueAttempts is how often one reading is begun.
const catalogueAttempts = 8

// viewSizes are the bytes up to which views are printed: fewer where the server could not
// print one of them, being too deep for its stack.
var viewSizes = []string{"200000", "20000", "2000", "0"}

// A CatalogueRead is what one reading of the catalogues was of.
type CatalogueRead struct {
	Server           string // which server, since its last start; "" = none was read
	SystemIdentifier string
	Sum              [32]byte // of all rows, in whatever order they came

	// Again gives the newest reading, of a server where that can be had within a moment.
	Again func(ctx context.Context, server string) CatalogueRead
}

// Catalogue reads what package catalog makes a snapshot of, and hands each row on, as JSON, or
// nil where all begins anew; of columns it tells which of keys there are. It has a connection of its own, as the role that
// writes, and sees one moment.
func (db *DB) Catalogue(ctx context.Context, keys []string, each func(row []byte) error) (CatalogueRead, error) {
	ctx, cancel := context.WithTimeout(ctx, 3*catalogueTime)
	defer cancel()
	defer context.AfterFunc(db.ctx, cancel)()
	p := db.writer // a server for reads alone may be behind
	c, again, err := p.connectOnce(ctx)
	if again { // its major is known now
		c.close()
		c, again, err = p.connectOnce(ctx)
	}
	switch {
	case err != nil:
		return CatalogueRead{}, err
	case again:
		c.close()
		return CatalogueRead{}, fmt.Errorf("the major of the server changed between two connections")
	}
	defer c.close()
	return c.catalogue(ctx, keys, p.cfg.schemas(), "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY", []string{"COMMIT"}, func() error {
		if !c.rollback(time.Now().Add(rollbackWait)) {
			return errOutOfStep
		}
		return nil
	}, each)
}

// sameCatalogue refuses a server whose catalogues may be others than those that a statement was
// judged by, which another server showed: the numbers by which definitions are compared as it runs
// mean something else in each history of a cluster. Which they are there now is asked of whoever judges; a
// standby is of the history that it follows, however far it is behind, and the comparison sees that it still is one.
func (l *lease) sameCatalogue(ctx context.Context, judged CatalogueRead) error {
	if judged.Server == "" || judged.Server == l.life || l.upstream.Timeline == "" && l.upstream.SystemIdentifier == judged.SystemIdentifier {
		return nil
	}
	if now := judged.Again(ctx, l.life); now.Server != l.life || now.Sum != judged.Sum {
		return replacedFault("its catalogue is another, or could not be read yet")
	}
	return nil
}

// Catalogue is that of DB as the block sees it, with what it has defined itself and nobody
// else sees before COMMIT. It leaves nothing behind in the block, which goes on where the
// server refuses it; the end of ctx does not end it.
func (b *Block) Catalogue(ctx context.Context, keys []string, each func(row []byte) error) (CatalogueRead, error) {
	if err := b.usable(); err != nil {
		return CatalogueRead{}, err
	}
	l, name := b.lease, b.newName()
	l.notices = nil
	end := []string{rollbackTo + name, release + name}
	read, err := l.catalogue(context.WithoutCancel(ctx), keys, b.db.cfg.schemas(), setSavepoint+name, end, func() error {
		refused, err := l.exchange(context.Background(), time.Now().Add(rollbackWait), b.settled(owns(end)...)...)
		if err == nil && (refused != nil || l.txStatus != 'T') {
			err = errOutOfStep
		}
		return err
	}, each)
	switch {
	case l.broken:
		b.brokeOff(nil, err)
	case l.txStatus != 'T':
		b.quit()
	}
	return read, err
}

// catalogue reads it in a transaction or a savepoint that begins and ends so; undo
// makes good an attempt that the server refused.
func (c *conn) catalogue(ctx context.Context, keys, schemas []string, begin string, end []string, undo func() error, each func(row []byte) error) (CatalogueRead, error) {
	if path, watched := c.params["search_path"]; watched { // reported from 18 on, also this one
		delete(c.params, "search_path")
		defer func() { c.params["search_path"] = path }()
	}
	var hashes [][32]byte
	keep := jsonRows(func(row []byte) error {
		hashes = append(hashes, sha256.Sum256(row))
		return each(row)
	})
	size := 0
	for attempt := 1; ; attempt++ {
		relations := &command{sql: relationsSQL, oids: []uint32{oidTextArray, oidInt4}, params: [][]byte{[]byte(textArray(keys)), []byte(viewSizes[size])}, sink: keep}
		shadows := &command{sql: shadowsSQL, oids: []uint32{oidTextArray}, params: [][]byte{[]byte(textArray(schemas))}, sink: keep}
		plain := &command{sql: plainTypesSQL, oids: []uint32{oidTextArray}, params: [][]byte{[]byte(textArray(schemas))}, sink: keep}
		refused, err := c.exchange(ctx, time.Now().Add(3*catalogueTime), slices.Concat(segment{own(begin), own("SET LOCAL search_path TO pg_catalog, pg_temp"),
			own(setTime("statement_timeout", catalogueTime)), own(setTime("lock_timeout", catalogueLock)), relations, shadows, plain}, owns(end)))
		if err != nil {
			return CatalogueRead{}, err
		}
		if refused == nil {
			slices.SortFunc(hashes, func(a, b [32]byte) int { return bytes.Compare(a[:], b[:]) })
			sum := sha256.New()
			for _, hash := range hashes {
				sum.Write(hash[:])
			}
			read := CatalogueRead{Server: c.life, SystemIdentifier: c.upstream.SystemIdentifier}
			sum.Sum(read.Sum[:0])
			return read, nil
		}
		if err := undo(); err != nil {
			return CatalogueRead{}, err
		}
		switch {
		case attempt < catalogueAttempts && strings.HasPrefix(refused.Code, "54") && size < len(viewSizes)-1: // program_limit_exceeded
			size++
		case attempt < catalogueAttempts && refused.Code == "XX000": // a view was dropped meanwhile
		default:
			return CatalogueRead{}, fmt.Errorf("the query was refused: %w", refused)
		}
		hashes = nil
		if err := each(nil); err != nil {
			return CatalogueRead{}, err
		}
	}
}

func owns(texts []string) (list segment) {
	for _, sql := range texts {
		list = append(list, own(sql))
	}
	return list
}

type jsonRows func(row []byte) error

func (jsonRows) Fields([]Field) error { return nil }

func (each jsonRows) Row(values [][]byte) error { return each(values[0]) }
