package classify

import "slices"

// The nodes of an expression: as it stays where it is, and as a condition that is pushed
// into the queries that it names, as deep as that goes (subquery_push_qual).
type nodes struct{ stays, pushed int }

func each(n int) nodes { return nodes{n, n} }

func (n nodes) plus(m nodes) nodes {
	return nodes{capped(n.stays + m.stays), capped(n.pushed + m.pushed)}
}

func (n nodes) times(k int) nodes { return nodes{capped(n.stays * k), capped(n.pushed * k)} }

func (n nodes) most(m nodes) nodes { return nodes{max(n.stays, m.stays), max(n.pushed, m.pushed)} }

// A sized is what a query comes to, in nodes, and what the columns of its result do.
type sized struct {
	columns []sizedColumn
	byName  map[string]nodes // once more than a few were looked through
	rest    nodes            // of a column of another name; 0 where all are known
	total   int
	whole   int  // nodes of the query, with those that it reads
	quals   int  // and of its conditions
	alone   bool // it stays a query
	joined  int  // relations that it brings into a query around
	listed  int  // parts of its list
	ways    int  // of the total, what joining those comes to
	count   int  // of its columns, at least
	width   int  // of its columns, about
	arms    int  // of a set operation, its queries
	clauses clauses
}

type sizedColumn struct {
	name string
	size nodes
}

// of is the size of a column by its name, 0 where there is none.
func (z *sizing) of(s *sized, name string) nodes {
	if len(s.columns) > fewColumns && s.byName == nil {
		z.steps += indexSteps * len(s.columns)
		s.byName = make(map[string]nodes, len(s.columns))
		for _, c := range s.columns {
			s.byName[c.name] = s.byName[c.name].most(c.size)
		}
	}
	n := s.byName[name]
	if s.byName == nil {
		z.steps += len(s.columns)
		for _, c := range s.columns {
			if c.name == name {
				n = n.most(c.size)
			}
		}
	}
	if n == (nodes{}) {
		return s.rest
	}
	return n
}

// row is the size of all columns together; how many a star over a table stands for is
// not known.
func (z *sizing) row(s *sized) nodes {
	n := s.rest.times(columnsOfTable)
	for _, c := range s.columns {
		z.steps++
		n = n.plus(c.size)
	}
	return n.most(each(s.width))
}

// most is the size of the largest column.
func (z *sizing) most(s *sized) nodes {
	n := s.rest
	for _, c := range s.columns {
		z.steps++
		n = n.most(c.size)
	}
	return n
}

// add puts a column behind the others. More than PostgreSQL takes are not told apart.
func (s *sized) add(columns ...sizedColumn) {
	if len(s.columns)+len(columns) <= maxResultColumns {
		s.columns = append(s.columns, columns...)
		return
	}
	for _, c := range append(s.columns, columns...) {
		s.rest = s.rest.most(c.size)
	}
	s.columns = nil
}

// kept is a query that stays one and takes no conditions in: its columns are names for
// the query around. LIMIT and OFFSET do that, of whatever value.
func (s *sized) kept() *sized {
	k := &sized{columns: slices.Clone(s.columns), rest: nodes{min(s.rest.stays, 1), min(s.rest.pushed, 1)}, total: s.total, whole: s.whole, alone: true, joined: 1, width: s.width, count: s.count}
	for i := range k.columns {
		k.columns[i].size = each(1)
	}
	return k
}

// united is a set operation. What is asked of it is asked of each of its queries.
func (z *sizing) united(l, r *sized) *sized {
	l.total, l.whole = capped(l.total+r.total), capped(l.whole+r.whole)
	known := l.rest == (nodes{}) && r.rest == (nodes{}) && len(l.columns) == len(r.columns)
	most := z.most(r)
	for k := range l.columns {
		if known {
			most = r.columns[k].size
		}
		l.columns[k].size = l.columns[k].size.most(most)
	}
	if l.rest != (nodes{}) {
		l.rest = l.rest.most(most)
	}
	l.byName = nil
	l.arms = max(l.arms, 1) + max(r.arms, 1)
	l.clauses = l.clauses.most(r.clauses)
	return l
}

// resized gives columns other names, in their order where that is known.
func (z *sizing) resized(s *sized, node int32, list string) *sized {
	if !z.has(node, list) {
		return s
	}
	r := &sized{rest: s.rest, total: s.total, whole: s.whole, quals: s.quals, alone: s.alone, joined: s.joined, listed: s.listed, ways: s.ways, width: s.width, arms: s.arms, count: s.count, clauses: s.clauses}
	most := z.most(s)
	for name := range z.items(node, list) {
		n := most
		if k := len(r.columns); s.rest == (nodes{}) && k < len(s.columns) {
			n = s.columns[k].size
		}
		r.columns = append(r.columns, sizedColumn{string(z.scalar(name)), n})
	}
	r.add(s.columns...) // those behind the list, and where the order is not known all
	return r
}
