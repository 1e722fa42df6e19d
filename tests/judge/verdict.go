package main

import (
	"fmt"
	"sort"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

const (
	good = "OK"
	bad  = "VIOLATION"
)

// verdict on a history. A check that was not finished in time is no acquittal.
type verdict struct {
	Verdict    string    `json:"verdict"`
	Operations int       `json:"operations"`
	Accesses   int       `json:"accesses"` // accepted
	Refused    int       `json:"refused"`  // accesses the fence kept out
	Resources  []finding `json:"resources"`
}

// finding is what was found out about one resource.
type finding struct {
	Resource   string  `json:"resource"`
	Operations int     `json:"operations"`
	Seconds    float64 `json:"seconds"` // for the linearizability check
	Accesses   int     `json:"accesses"`
	Refused    int     `json:"refused"`
	Fence      int64   `json:"fence"` // the highest
	// By kind: exclusion, unfinished, fence, isolation, deadline, garbage.
	Violations map[string][]string `json:"violations"`
}

func (r *resource) judge(limit time.Duration) finding {
	accepted := len(r.accepted())
	f := finding{
		Resource:   r.name,
		Accesses:   accepted,
		Refused:    len(r.accesses) - accepted,
		Violations: map[string][]string{},
	}
	for _, s := range r.sessions {
		f.Fence = later(f.Fence, s.fence)
	}
	f.violated("fence", r.fences())
	f.linearize(r.turns(), limit)
	f.violated("isolation", r.isolation())
	f.violated("deadline", r.deadlines())
	f.violated("garbage", r.garbage())
	return f
}

// linearize asks whether the steps can be put in an order that is a lock's. With
// fences that go back there is none: then this says nothing of exclusion.
func (f *finding) linearize(turns []*turn, limit time.Duration) {
	begin := time.Now()
	f.Operations = len(operations(turns))
	if len(f.Violations["fence"]) == 0 {
		f.violated("exclusion", narrow(turns))
	}
	if len(f.Violations) == 0 {
		switch porcupine.CheckOperationsTimeout(model, operations(turns), limit) {
		case porcupine.Illegal:
			f.violated("exclusion", []string{"no order of the steps is that of a readers-writer lock"})
		case porcupine.Unknown:
			f.violated("unfinished", []string{fmt.Sprintf("linearizability not decided in %v", limit)})
		}
	}
	f.Seconds = time.Since(begin).Seconds()
}

func (f *finding) violated(kind string, texts []string) {
	if len(texts) > 0 {
		f.Violations[kind] = texts
	}
}

func (v *verdict) add(f finding) {
	v.Resources = append(v.Resources, f)
	v.Operations += f.Operations
	v.Accesses += f.Accesses
	v.Refused += f.Refused
	if len(f.Violations) > 0 {
		v.Verdict = bad
	}
}

func (v verdict) print() {
	for _, f := range v.Resources {
		fmt.Printf("%s: %d operations (%.2f s), %d accesses, %d refused, highest fence %d: %s\n",
			f.Resource, f.Operations, f.Seconds, f.Accesses, f.Refused, f.Fence, f.summary())
	}
	fmt.Printf("TOTAL %d operations, %d accesses, %d refused, verdict %s\n",
		v.Operations, v.Accesses, v.Refused, v.Verdict)
}

// summary counts the violations by kind and shows the first of each.
func (f finding) summary() string {
	if len(f.Violations) == 0 {
		return good
	}
	var parts []string
	for kind, texts := range f.Violations {
		parts = append(parts, fmt.Sprintf("%d %s (%s)", len(texts), kind, texts[0]))
	}
	sort.Strings(parts)
	return strings.Join(parts, ", ")
}
