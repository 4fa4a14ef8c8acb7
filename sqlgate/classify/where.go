package classify

// judgeWheres gives every UPDATE, DELETE, MERGE and DO UPDATE its value of
// Where, after the walk, which collected where columns are named.
func (w *walk) judgeWheres() {
	for _, i := range w.dml {
		value, cond := w.reach(i)
		w.wheres.addWord(value)
		switch value {
		case WhereNone:
			w.raise(SignalWriteWithoutWhere, "", i)
		case WhereTautology:
			w.raise(SignalTautologicalWhere, "", cond)
		}
	}
}

// reach gives the value of one statement and the condition that it is of.
func (w *walk) reach(i int32) (value string, cond int32) {
	switch {
	case w.is(i, "InsertStmt"):
		return w.upsertReach(i)
	case w.is(i, "MergeStmt"):
		cond = w.child(i, "joinCondition")
		return w.where(keyOf{w.child(i, "relation"), false}, cond), cond
	}
	cond = w.child(i, "whereClause")
	alone := !w.has(i, "fromClause") && !w.has(i, "usingClause")
	return w.where(keyOf{w.child(i, "relation"), alone}, cond), cond
}

// where judges one condition.
func (w *walk) where(of keyOf, cond int32) string {
	if cond < 0 {
		return WhereNone
	}
	w.about(w.query(cond), false)
	switch w.truth(cond) {
	case isTrue, undecided:
		return WhereTautology
	case byRow:
		if w.bindsKey(of, cond) {
			return WhereKeyEquality
		}
		if w.readsTargetAgain() {
			w.about(w.reached, true)
			if w.truth(cond) == isTrue {
				return WhereTautology
			}
		}
	}
	return WherePresent
}

// about begins the judgement of a condition on the rows of a statement. With self,
// each row of the target is also what the text reads of the same relation: where a
// condition is true then, each row meets itself.
func (w *walk) about(stmt int32, self bool) {
	w.reached, w.selfJoin = stmt, self
	w.forgetTruths()
}

// forgetTruths keeps the maps unless they are large, which makes clearing them slow.
func (w *walk) forgetTruths() {
	if len(w.reductions)+len(w.truths) > 1000 {
		w.reductions, w.truths = nil, nil
		return
	}
	clear(w.reductions)
	clear(w.truths)
}

// readsTargetAgain reports whether the relation of the target stands in its
// statement once more.
func (w *walk) readsTargetAgain() bool {
	for i := w.reached + 1; i < w.e[w.reached].next; i++ {
		w.steps++
		if w.is(i, "RangeVar") && w.isTargetsRelation(i) {
			return true
		}
	}
	w.bounded()
	return false
}
