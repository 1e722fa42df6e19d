package main

import (
	"sort"
	"strings"

	"github.com/anishathalye/porcupine"
)

// action is what a store does in one atomic step.
type action int

const (
	acquire      action = iota // grants, with the fence told
	acquireMaybe               // grants, with a fence nobody heard of, or does nothing
	release                    // ends a grant that is alive
	releaseMaybe               // ends a grant if the request ever arrives
	vacate                     // ends a grant if it is still alive: expiry
)

type input struct {
	do     action
	holder string
	mode   string
	fence  int64
}

// state is a readers-writer lock. The highest fence so far is part of it, together
// with the mode it was granted in: only readers may share one.
type state struct {
	fence   int64
	mode    string
	holders string // mode and holder of each, "R1f…,R2a…", in order
}

// model is the lock as it should be, for Porcupine. It is not deterministic: a step
// whose outcome nobody knows leads to several states.
func model() porcupine.Model {
	lock := porcupine.NondeterministicModel{
		Init: func() []interface{} { return []interface{}{state{}} },
		Step: func(now, in, _ interface{}) []interface{} {
			var next []interface{}
			for _, s := range now.(state).step(in.(input)) {
				next = append(next, s)
			}
			return next
		},
	}
	return lock.ToModel()
}

// step returns the states that may follow; none: this cannot have happened.
func (s state) step(in input) []state {
	switch in.do {
	case acquire:
		stale := in.fence < s.fence
		shared := in.fence == s.fence && (in.mode == "W" || s.mode == "W")
		if stale || shared || !s.admits(in.mode) {
			return nil
		}
		return []state{{in.fence, in.mode, s.with(in)}}
	case acquireMaybe:
		if !s.admits(in.mode) {
			return []state{s}
		}
		return []state{s, {s.fence, s.mode, s.with(in)}}
	case release:
		if !s.held(in) {
			return nil
		}
		return []state{s.without(in)}
	case releaseMaybe:
		return []state{s, s.without(in)}
	default:
		return []state{s.without(in)}
	}
}

// admits: readers go with readers, a writer with nobody.
func (s state) admits(mode string) bool {
	return s.holders == "" || mode == "R" && s.holders[0] == 'R'
}

func (s state) with(in input) string {
	holders := append(s.list(), in.mode+in.holder)
	sort.Strings(holders)
	return strings.Join(holders, ",")
}

func (s state) without(in input) state {
	holders := s.list()
	for i, h := range holders {
		if h == in.mode+in.holder {
			holders = append(holders[:i], holders[i+1:]...)
			break
		}
	}
	return state{s.fence, s.mode, strings.Join(holders, ",")}
}

func (s state) held(in input) bool {
	for _, h := range s.list() {
		if h == in.mode+in.holder {
			return true
		}
	}
	return false
}

func (s state) list() []string {
	if s.holders == "" {
		return nil
	}
	return strings.Split(s.holders, ",")
}
