package main

import (
	"sort"

	"github.com/anishathalye/porcupine"
)

// operations turns the sessions of a resource into what its store may have done, each
// with the first and last moment at which it can have happened.
func (r *resource) operations(opts options) []porcupine.Operation {
	var ops []porcupine.Operation
	add := func(do action, s *session, from, to int64) {
		in := input{do: do, holder: s.holder, mode: s.mode, fence: s.fence}
		ops = append(ops, porcupine.Operation{ClientId: len(ops), Input: in, Call: from, Return: to})
	}
	for _, s := range r.inOrder() {
		switch {
		case s.acquired == yes:
			add(acquire, s, s.asked, s.granted)
		case s.acquired == unknown && s.released == yes:
			add(acquireMaybe, s, s.asked, s.granted+opts.flight)
		default:
			// Refused, or unknown and never heard of again. That one may have held for
			// a while, but "it did not" forbids others less: leaving it out is exact.
			continue
		}
		switch {
		case s.leaving == never:
		case s.released == yes:
			add(release, s, s.leaving, s.left)
		case s.released == no:
			add(vacate, s, s.leaving, s.left)
		default:
			add(releaseMaybe, s, s.leaving, s.leaving+opts.flight)
		}
		if from, to, ok := r.ghost(s, opts); ok {
			add(vacate, s, from, to)
		}
	}
	return ops
}

// ghost says when the store may have let a grant expire, seen by nobody: not before
// the last deadline its holder knew, and at the latest one lease after the holder
// can have renewed it for the last time.
func (r *resource) ghost(s *session, opts options) (from, to int64, ok bool) {
	if s.acquired != yes || s.released == yes {
		return 0, 0, false // a confirmed release proves that it had not expired
	}
	from = earlier(s.until, s.lost)
	if from == never || (s.released == no && s.leaving < from) {
		return 0, 0, false
	}
	last := earlier(earlier(s.left, s.lost), earlier(s.died, r.end))
	return from, later(from, last+opts.lease) + opts.slop, true
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

func later(a, b int64) int64 {
	if a > b {
		return a
	}
	return b
}
