package main

import (
	"sort"

	"github.com/anishathalye/porcupine"
)

// turn is what a store did for one session, each step with the first and the last
// moment at which it can have been taken.
type turn struct {
	*session
	begin porcupine.Operation
	end   *porcupine.Operation // nil: nothing can have ended it
}

// turns are those of the sessions that held, or may have.
//
// Nobody sees an expiry, or a request whose reply was lost. Both are settled by one
// thought: fewer holders never forbid a step. What may have ended a grant is taken to
// have done so as early as it could, and an acquire of unknown outcome is left out
// (unless its release was confirmed). No order is refused that another guess would
// allow, and no step stays open for longer than its caller waited.
func (r *resource) turns() []*turn {
	var turns []*turn
	for _, s := range r.inOrder() {
		t := &turn{session: s}
		switch {
		case s.acquired == yes:
			t.begin = s.operation(acquire, s.asked, s.granted)
		case s.released == yes:
			t.begin = s.operation(acquireUntold, s.asked, s.left)
		default:
			continue
		}
		if s.released == yes {
			end := s.operation(release, s.leaving, s.left)
			t.end = &end
		} else if from := earlier(earlier(s.until, s.lost), s.leaving); from != never {
			// A grant that came too late ended as soon as it began.
			end := s.operation(release, from, later(from, s.granted))
			t.end = &end
		}
		turns = append(turns, t)
	}
	return turns
}

func (s *session) operation(do action, from, to int64) porcupine.Operation {
	in := input{do: do, holder: s.holder, mode: s.mode, fence: s.fence}
	return porcupine.Operation{Input: in, Call: from, Return: to}
}

func operations(turns []*turn) []porcupine.Operation {
	var ops []porcupine.Operation
	for _, t := range turns {
		ops = append(ops, t.begin)
		if t.end != nil {
			ops = append(ops, *t.end)
		}
	}
	return ops
}

// inOrder makes the check, and with it its running time, repeatable.
func (r *resource) inOrder() []*session {
	sessions := make([]*session, 0, len(r.sessions))
	for _, s := range r.sessions {
		sessions = append(sessions, s)
	}
	sort.Slice(sessions, func(i, j int) bool {
		a, b := sessions[i], sessions[j]
		return a.asked < b.asked || a.asked == b.asked && a.holder < b.holder
	})
	return sessions
}
