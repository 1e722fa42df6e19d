package main

import "math"

// never is later than any time of a history.
const never = math.MaxInt64

// answer is what is known of a call: the store's word, or nothing.
type answer int

const (
	unknown answer = iota
	yes
	no
)

// session is one attempt to acquire and all that followed from it.
type session struct {
	holder, mode string

	asked, granted int64
	acquired       answer
	fence          int64
	until          int64 // the latest local deadline known

	leaving  int64 // the release was called; never
	left     int64 // ... and answered; never
	released answer

	lost int64 // the holder learned that it no longer holds; never
}

// resource is all that happened to one name.
type resource struct {
	name     string
	sessions map[string]*session // by holder
	accesses []event
	twice    []string // holders granted more than once
	late     []event  // with a deadline more than a lease away
}

// sortOut tells the story of each resource, from events in any order.
func sortOut(history []event, lease int64) []*resource {
	byName := map[string]*resource{}
	var resources []*resource
	for _, e := range history {
		if e.Holder == "" {
			continue // the death of a process ends no grant: its lease does
		}
		r := byName[e.Resource]
		if r == nil {
			r = &resource{name: e.Resource, sessions: map[string]*session{}}
			byName[e.Resource] = r
			resources = append(resources, r)
		}
		r.add(e)
		if lease > 0 && e.Until != nil && *e.Until > e.At+lease {
			r.late = append(r.late, e)
		}
	}
	return resources
}

func (r *resource) add(e event) {
	s := r.sessions[e.Holder]
	if s == nil {
		s = &session{holder: e.Holder, leaving: never, left: never, lost: never}
		r.sessions[e.Holder] = s
	}
	switch e.Kind {
	case "ask":
		s.mode, s.asked = e.Mode, e.At
	case "granted":
		if s.acquired == yes {
			r.twice = append(r.twice, e.Holder)
		}
		s.acquired, s.mode, s.fence = yes, e.Mode, e.Fence
		s.asked, s.granted = e.AskedAt, e.At
		s.renewed(e.Until)
	case "refused", "failed":
		s.acquired = no
	case "access":
		r.accesses = append(r.accesses, e)
		s.renewed(e.Until)
	case "releasing":
		s.leaving = earlier(s.leaving, e.At)
		s.renewed(e.Until)
	case "released":
		s.leaving, s.left = earlier(s.leaving, e.AskedAt), e.At
		if e.OK != nil {
			s.released = no
			if *e.OK {
				s.released = yes
			}
		}
	case "lost":
		s.lost = earlier(s.lost, e.At)
	}
}

func (s *session) renewed(until *int64) {
	if until == nil {
		s.until = never
	} else {
		s.until = later(s.until, *until)
	}
}

func earlier(a, b int64) int64 {
	if a < b {
		return a
	}
	return b
}

func later(a, b int64) int64 {
	if a > b {
		return a
	}
	return b
}
