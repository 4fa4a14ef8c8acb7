package classify

import "bytes"

// A scope is a part of a statement whose names see the same items of FROM: of a query,
// of the condition of a join in it (at is the join), or of an item of its FROM.
type scope struct{ query, at int32 }

// What a scope sees.
type seen struct {
	items  []item
	byName map[string][]item // once there are more than a few
}

// inSight yields what PostgreSQL looks through for a name, from the inside out. Items
// that a join covers are among them.
func (w *walk) inSight(ref int32) func(func(s *seen) bool) {
	return func(yield func(*seen) bool) {
		inside := ref
		for q := w.query(ref); q > 0; inside, q = q, w.query(q) {
			in := scope{q, q}
			for up := w.owner(inside); up != q; inside, up = up, w.owner(up) {
				if in.at == q && (w.is(up, "JoinExpr") && w.fieldName(inside) == "quals" || w.isRange(up)) {
					in.at = up
				}
			}
			switch w.fieldName(inside) {
			case "withClause", "selectStmt", "larg", "rarg":
				continue
			case "fromClause", "usingClause", "sourceRelation":
			default:
				in.at = q
			}
			if !yield(w.seenIn(in)) {
				return
			}
		}
		w.bounded()
	}
}

// isRange reports whether a node is an item of FROM with expressions of its own.
func (w *walk) isRange(i int32) bool {
	return w.is(i, "RangeSubselect") || w.is(i, "RangeFunction") || w.is(i, "RangeTableFunc") || w.is(i, "RangeTableSample")
}

// seenIn finds the items that the names of a scope see, once for all of them.
func (w *walk) seenIn(in scope) *seen {
	if s := w.scopes[in]; s != nil {
		return s
	}
	s := &seen{}
	switch {
	case in.at == in.query:
		for _, field := range []string{"relation", "fromClause", "usingClause", "sourceRelation"} {
			s.items = w.itemsBelow(w.child(in.query, field), s.items)
		}
	case w.is(in.at, "JoinExpr"):
		s.items = w.itemsBelow(w.child(in.at, "larg"), s.items)
		s.items = w.itemsBelow(w.child(in.at, "rarg"), s.items)
	case w.is(in.at, "RangeFunction"), w.is(in.at, "RangeTableFunc"), w.has(in.at, "lateral"): // see what stands in front of them
		coveredTo := int32(0)
		for _, it := range w.allOf(w.seenIn(scope{in.query, in.query})) {
			if w.e[it.node].next > in.at { // or around, whose alias covers nothing inside
				continue
			}
			it.covered = it.node < coveredTo
			if s.items = append(s.items, it); w.is(it.node, "JoinExpr") && w.child(it.node, "alias") >= 0 {
				coveredTo = max(coveredTo, w.e[it.node].next)
			}
		}
	}
	if len(s.items) > fewColumns {
		s.byName = map[string][]item{}
		for _, it := range s.items {
			s.byName[string(it.name)] = append(s.byName[string(it.name)], it)
		}
	}
	w.steps += indexSteps * len(s.items)
	w.bounded()
	if w.scopes == nil {
		w.scopes = map[scope]*seen{}
	}
	w.scopes[in] = s
	return s
}

// itemsBelow adds the items of a part of FROM.
func (w *walk) itemsBelow(part int32, all []item) []item {
	if part < 0 {
		return all
	}
	coveredTo := part // the end of the last join with an alias
	for i := part; i < w.e[part].next; i++ {
		w.steps++
		if w.isQuery(i) || w.e[i].msg != 0 && w.fieldName(i) == "quals" { // the first has a FROM of its own, the other none
			i = w.e[i].next - 1
			continue
		}
		join := w.is(i, "JoinExpr")
		if !join && !w.is(i, "RangeVar") && !w.is(i, "RangeSubselect") && !w.is(i, "RangeFunction") && !w.is(i, "RangeTableFunc") {
			continue
		}
		all = w.addItems(all, i, i < coveredTo)
		if join && w.child(i, "alias") >= 0 {
			coveredTo = max(coveredTo, w.e[i].next)
		}
	}
	w.bounded()
	return all
}

// allOf gives all items, for a name that may be a column of any.
func (w *walk) allOf(s *seen) []item {
	w.steps += len(s.items)
	return s.items
}

// named gives the items of a name.
func (s *seen) named(name []byte) []item {
	if s.byName != nil {
		return s.byName[string(name)]
	}
	var found []item
	for _, it := range s.items {
		if bytes.Equal(it.name, name) {
			found = append(found, it)
		}
	}
	return found
}

// resolveItem finds what a name in front of a dot may stand for.
func (w *walk) resolveItem(ref int32, name []byte) (found []item) {
	if len(name) == 0 {
		return nil
	}
	for s := range w.inSight(ref) {
		w.steps += min(len(s.items), fewColumns)
		for _, it := range s.named(name) {
			if w.steps++; !it.covered {
				found = append(found, it)
			}
		}
		if len(found) > 0 {
			break
		}
	}
	return found
}
