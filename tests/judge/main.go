// Judge decides from recorded histories whether the locks kept their promises.
//
//	judge [flags] FILE...
//
// It prints one line per resource and a total. Exit status: 0 nothing was
// violated, 1 something was, 2 there is no readable history.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"sort"
	"time"
)

// options are durations in nanoseconds, as all times of a history are.
type options struct {
	lease  int64         // how long a grant lives without renewal
	slop   int64         // clock granularity, and how late a store may expire
	flight int64         // how long a request nobody waits for may be on its way
	limit  time.Duration // of the linearizability check of one resource
}

func main() {
	lease := flag.Int64("lease-ms", 30_000, "how long a grant lives without renewal")
	slop := flag.Int64("slop-ms", 50, "how late a store may notice an expiry")
	flight := flag.Int64("flight-ms", 3_000, "how long an abandoned request may still take effect")
	limit := flag.Duration("limit", time.Minute, "time for the linearizability check of one resource")
	asJSON := flag.Bool("json", false, "print the verdict as one JSON document")
	flag.Parse()

	history, err := read(flag.Args())
	if err == nil && len(history) == 0 {
		err = fmt.Errorf("no events in %d files", flag.NArg())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "judge:", err)
		os.Exit(2)
	}
	const ms = int64(time.Millisecond)
	verdict := decide(history, options{*lease * ms, *slop * ms, *flight * ms, *limit})
	if *asJSON {
		if err := json.NewEncoder(os.Stdout).Encode(verdict); err != nil {
			fmt.Fprintln(os.Stderr, "judge:", err)
			os.Exit(2)
		}
	} else {
		verdict.print()
	}
	if verdict.Verdict != good {
		os.Exit(1)
	}
}

// decide judges every resource by itself: locks of different names are independent.
func decide(history []event, opts options) verdict {
	resources := sortOut(history)
	sort.Slice(resources, func(i, j int) bool { return resources[i].name < resources[j].name })
	total := verdict{Verdict: good}
	for _, r := range resources {
		total.add(r.judge(opts))
	}
	return total
}
