package main

import (
	"fmt"
	"sort"
)

// fences finds grants asked for after another had been granted that carry a smaller
// fence, or an equal one though one of the two is a writer.
func (r *resource) fences() []string {
	var asked, granted []*session
	for _, s := range r.inOrder() {
		if s.acquired == yes {
			asked, granted = append(asked, s), append(granted, s)
		}
	}
	sort.SliceStable(granted, func(i, j int) bool { return granted[i].granted < granted[j].granted })

	var found []string
	var high *session // of all granted before `s` asked; of equal fences a writer
	for _, s := range asked {
		for len(granted) > 0 && granted[0].granted < s.asked {
			g := granted[0]
			if high == nil || g.fence > high.fence || g.fence == high.fence && g.mode == "W" {
				high = g
			}
			granted = granted[1:]
		}
		if high == nil || s.fence > high.fence {
			continue
		}
		if s.fence < high.fence || s.mode == "W" || high.mode == "W" {
			found = append(found, fmt.Sprintf("%s %s has fence %d, after %d of %s %s",
				s.mode, s.holder, s.fence, high.fence, high.mode, high.holder))
		}
	}
	return found
}

// isolation finds sessions with a foreign access, for a reader a foreign write,
// between their first and last one, in the order in which the resource accepted them.
func (r *resource) isolation() []string {
	accepted := r.accepted()
	places := map[string][]int{}
	writes := make([]int, len(accepted)+1) // up to and without a place
	var holders []string
	for i, a := range accepted {
		writes[i+1] = writes[i]
		if a.Mode == "W" {
			writes[i+1]++
		}
		if places[a.Holder] == nil {
			holders = append(holders, a.Holder)
		}
		places[a.Holder] = append(places[a.Holder], i)
	}
	var found []string
	for _, holder := range holders {
		own := places[holder]
		first, last := own[0], own[len(own)-1]
		foreign := last - first + 1 - len(own)
		if accepted[first].Mode == "R" {
			foreign = writes[last+1] - writes[first]
		}
		if foreign > 0 {
			found = append(found, fmt.Sprintf("%d foreign accesses between %d and %d of %s %s", foreign,
				*accepted[first].Serial, *accepted[last].Serial, accepted[first].Mode, holder))
		}
	}
	return found
}

// deadlines finds holders that counted on more than a lease: who takes the time only
// when the reply is there, and not before the request is sent, believes too long.
func (r *resource) deadlines() []string {
	var found []string
	for _, e := range r.late {
		found = append(found, fmt.Sprintf("%s counted at %d on holding until %d", e.Holder, e.At, *e.Until))
	}
	return found
}

// garbage finds where the history contradicts itself.
func (r *resource) garbage() []string {
	var found []string
	for _, holder := range r.twice {
		found = append(found, holder+" was granted twice")
	}
	for _, a := range r.accesses {
		s := r.sessions[a.Holder]
		if s.acquired != yes {
			found = append(found, a.Holder+" had access and was never granted")
		} else if s.fence != a.Fence || s.mode != a.Mode {
			found = append(found, fmt.Sprintf("%s had access as %s with fence %d, granted was %s with %d",
				a.Holder, a.Mode, a.Fence, s.mode, s.fence))
		}
	}
	accepted := r.accepted()
	for i := 1; i < len(accepted); i++ {
		if *accepted[i].Serial == *accepted[i-1].Serial {
			found = append(found, fmt.Sprintf("two had access %d", *accepted[i].Serial))
		}
	}
	return found
}

// accepted are the accesses the fence let through, in the resource's order.
func (r *resource) accepted() []event {
	var accepted []event
	for _, a := range r.accesses {
		if a.Serial != nil {
			accepted = append(accepted, a)
		}
	}
	sort.SliceStable(accepted, func(i, j int) bool { return *accepted[i].Serial < *accepted[j].Serial })
	return accepted
}
