package main

import (
	"sort"
	"strings"

	"github.com/anishathalye/porcupine"
)

// action is what a store does in one atomic step.
type action int

const (
	acquire       action = iota // grants, with the fence told
	acquireUntold               // grants, with a fence nobody heard of
	release                     // ends a grant, on request or because it expired
)

type input struct {
	do     action
	holder string
	mode   string
	fence  int64
	before int // grants with smaller fences: all of them come before this one
}

// state is a readers-writer lock. The highest fence so far is part of it, together
// with the mode it was granted in: only readers may share one.
type state struct {
	fence   int64
	mode    string
	told    int    // grants so far, but for those with a fence nobody heard of
	holders string // mode and holder of each, "R1f…,R2a…", in order
}

// model is the lock as it should be, for Porcupine.
var model = porcupine.Model{
	Init: func() interface{} { return state{} },
	Step: func(now, in, _ interface{}) (bool, interface{}) {
		return now.(state).step(in.(input))
	},
}

// step returns whether the store can have taken this step, and what follows from it.
func (s state) step(in input) (bool, state) {
	holders := split(s.holders)
	place := sort.SearchStrings(holders, in.mode+in.holder)
	held := place < len(holders) && holders[place] == in.mode+in.holder
	switch in.do {
	case release:
		if !held {
			return false, s
		}
		s.holders = strings.Join(append(holders[:place], holders[place+1:]...), ",")
		return true, s
	case acquire:
		shared := in.mode == "R" && s.mode == "R"
		if in.fence < s.fence || in.fence == s.fence && !shared || s.told < in.before {
			return false, s
		}
		s.fence, s.mode, s.told = in.fence, in.mode, s.told+1
	}
	if !s.admits(in.mode) {
		return false, s
	}
	holders = append(holders, in.mode+in.holder)
	sort.Strings(holders)
	s.holders = strings.Join(holders, ",")
	return true, s
}

// admits: readers go with readers, a writer with nobody.
func (s state) admits(mode string) bool {
	return s.holders == "" || mode == "R" && s.holders[0] == 'R'
}

func split(holders string) []string {
	if holders == "" {
		return nil
	}
	return strings.Split(holders, ",")
}
