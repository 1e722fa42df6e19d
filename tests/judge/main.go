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

func main() {
	lease := flag.Int64("lease-ms", 0, "the longest lease in use; 0: do not compare deadlines with it")
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
	verdict := decide(history, *lease*int64(time.Millisecond), *limit)
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
// All times are nanoseconds, as in the history.
func decide(history []event, lease int64, limit time.Duration) verdict {
	resources := sortOut(history, lease)
	sort.Slice(resources, func(i, j int) bool { return resources[i].name < resources[j].name })
	total := verdict{Verdict: good}
	for _, r := range resources {
		total.add(r.judge(limit))
	}
	return total
}
