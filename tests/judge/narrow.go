package main

import (
	"fmt"
	"sort"
)

// narrow shortens the time in which each grant can have been given, by what fences
// say of their order: a grant comes after those with smaller fences have begun, and
// after those it cannot share with have ended; and before all with greater ones.
//
// It also tells the model how many come before each. Neither refuses what the model
// would admit in the end. It is for speed: in a long queue all waiters might be next,
// and Porcupine would try them in every order.
//
// It returns the grants for which no moment is left. Fences must not go back.
func narrow(turns []*turn) []string {
	byFence := make([]*turn, 0, len(turns))
	for _, t := range turns {
		if t.acquired == yes {
			byFence = append(byFence, t)
		}
	}
	sort.SliceStable(byFence, func(i, j int) bool { return byFence[i].fence < byFence[j].fence })

	// The earliest moment for a reader, and for a writer, after all smaller fences.
	var reader, writer int64
	before := 0
	all := groups(byFence)
	for _, group := range all {
		afterReader, afterWriter := reader, writer
		for _, t := range group {
			t.comesAfter(before)
			from := reader
			if t.mode == "W" {
				from = writer
			}
			t.begin.Call = later(t.begin.Call, from)
			afterReader = later(afterReader, t.begin.Call)
			afterWriter = later(afterWriter, t.begin.Call)
			if t.end != nil {
				afterWriter = later(afterWriter, t.end.Call)
				if t.mode == "W" {
					afterReader = later(afterReader, t.end.Call)
				}
			}
		}
		reader, writer = afterReader, afterWriter
		before += len(group)
	}

	var found []string
	last := int64(never) // the latest moment, before all greater fences
	for i := len(all) - 1; i >= 0; i-- {
		before := last
		for _, t := range all[i] {
			t.begin.Return = earlier(t.begin.Return, last)
			before = earlier(before, t.begin.Return)
			if t.begin.Call > t.begin.Return {
				found = append(found, fmt.Sprintf("%s %s (fence %d) was granted by %d, others held until %d at least",
					t.mode, t.holder, t.fence, t.begin.Return, t.begin.Call))
			}
		}
		last = before
	}
	return found
}

// comesAfter tells the model how many grants have smaller fences.
func (t *turn) comesAfter(grants int) {
	in := t.begin.Input.(input)
	in.before = grants
	t.begin.Input = in
}

// groups are the runs of equal fences.
func groups(byFence []*turn) [][]*turn {
	var all [][]*turn
	for i, t := range byFence {
		if i == 0 || t.fence != byFence[i-1].fence {
			all = append(all, nil)
		}
		all[len(all)-1] = append(all[len(all)-1], t)
	}
	return all
}
