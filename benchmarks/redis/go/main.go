// rueidislock as a worker: the jobs of harness/worker.py, without readers and writers.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"
	"golang.org/x/sys/unix"
)

type job struct {
	Kind    string
	URL     string
	Lease   float64
	Key     string
	Tasks   int
	Cycles  int
	Section float64
	Seconds float64
}

// With NoLoopTracking rueidislock is faster, but loses a wake-up now and then when one
// process takes turns fast, and stands still: in 5 of 24 runs of half a second.
var turns = map[string]bool{"hold_each": true, "take_turns": true, "time_cycles": true}

// As DRAIN_TIMEOUT in harness/worker.py.
const drainSeconds = 35.0

var input = bufio.NewReader(os.Stdin)

func reply(words map[string]any) {
	line, err := json.Marshal(words)
	must(err)
	fmt.Println(string(line))
}

func order() string {
	line, _ := input.ReadString('\n')
	return strings.TrimSpace(line)
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// The clock that Python calls time.monotonic.
func monotonic() float64 {
	var now unix.Timespec
	must(unix.ClockGettime(unix.CLOCK_MONOTONIC, &now))
	return float64(now.Sec) + float64(now.Nsec)/1e9
}

func main() {
	var todo job
	must(json.Unmarshal([]byte(os.Args[1]), &todo))
	address, err := url.Parse(todo.URL)
	must(err)
	locker, err := rueidislock.NewLocker(rueidislock.LockerOption{
		ClientOption:   rueidis.ClientOption{InitAddress: []string{address.Host}},
		KeyMajority:    1, // one server
		NoLoopTracking: !turns[todo.Kind],
		KeyValidity:    seconds(todo.Lease),
	})
	must(err)
	defer locker.Close()
	jobs := map[string]func(rueidislock.Locker, job){
		"hand_over":       handOver,
		"hold":            hold,
		"hold_each":       holdEach,
		"take_turns":      takeTurns,
		"time_cycles":     timeCycles,
		"wait_for_killed": waitForKilled,
		"wait_together":   waitTogether,
	}
	run, known := jobs[todo.Kind]
	if !known {
		must(fmt.Errorf("no job %q here", todo.Kind))
	}
	reply(map[string]any{"ready": true})
	run(locker, todo)
}

func seconds(number float64) time.Duration {
	return time.Duration(number * float64(time.Second))
}

func keyOf(pattern string, task int) string {
	return strings.ReplaceAll(pattern, "{task}", strconv.Itoa(task))
}

func lock(locker rueidislock.Locker, key string) func() {
	_, release, err := locker.WithContext(context.Background(), key)
	must(err)
	return release
}

func timeCycles(locker rueidislock.Locker, todo job) {
	order()
	took := []float64{}
	for range todo.Cycles + todo.Cycles/10 {
		started := time.Now()
		lock(locker, todo.Key)()
		took = append(took, time.Since(started).Seconds())
	}
	reply(map[string]any{"took": took[len(took)-todo.Cycles:]})
}

func takeTurns(locker rueidislock.Locker, todo job) {
	begin, err := strconv.ParseFloat(order(), 64)
	must(err)
	ends := begin + todo.Seconds
	var guard sync.Mutex
	var all sync.WaitGroup
	turns := [][]any{}
	for task := range todo.Tasks {
		key := keyOf(todo.Key, task)
		all.Go(func() {
			mine := [][]any{}
			for asked := monotonic(); asked < ends; asked = monotonic() {
				release := lock(locker, key)
				gotIn := monotonic()
				if todo.Section > 0 && gotIn < ends {
					time.Sleep(seconds(todo.Section))
				}
				mine = append(mine, []any{task, 1, asked, gotIn, monotonic(), 0})
				release()
			}
			guard.Lock()
			turns = append(turns, mine...)
			guard.Unlock()
		})
	}
	all.Wait()
	wall := float64(time.Now().UnixNano())/1e9 - monotonic()
	reply(map[string]any{"turns": turns, "wall": wall})
}

func holdEach(locker rueidislock.Locker, todo job) {
	order()
	for task := range todo.Tasks {
		defer lock(locker, keyOf(todo.Key, task))()
	}
	reply(map[string]any{"got_in": monotonic()})
	order()
	reply(map[string]any{"left": monotonic()})
}

func waitForKilled(locker rueidislock.Locker, todo job) {
	order()
	var guard sync.Mutex
	var all sync.WaitGroup
	for task := range todo.Tasks {
		key := todo.Key + "-" + strconv.Itoa(task)
		all.Go(func() {
			release := lock(locker, key)
			gotIn := float64(time.Now().UnixNano()) / 1e9
			release()
			guard.Lock()
			reply(map[string]any{"key": key, "got_in": gotIn})
			guard.Unlock()
		})
	}
	reply(map[string]any{"asked": todo.Tasks})
	all.Wait()
}

func handOver(locker rueidislock.Locker, todo job) {
	for word := order(); word != "" && word != "end"; word = order() {
		stay, err := strconv.ParseFloat(word, 64)
		must(err)
		release := lock(locker, todo.Key)
		reply(map[string]any{"got_in": monotonic()})
		time.Sleep(seconds(stay))
		left := monotonic()
		release()
		reply(map[string]any{"left": left})
	}
}

func hold(locker rueidislock.Locker, todo job) {
	order()
	release := lock(locker, todo.Key)
	reply(map[string]any{"got_in": monotonic()})
	order()
	left := monotonic()
	release()
	reply(map[string]any{"left": left})
}

func waitTogether(locker rueidislock.Locker, todo job) {
	order()
	limit := drainSeconds
	if todo.Seconds > 0 {
		limit = todo.Seconds
	}
	waits, giveUp := context.WithCancel(context.Background())
	defer giveUp()
	var guard sync.Mutex
	var all sync.WaitGroup
	served, last, errors := 0, 0.0, map[string]int{}
	for range todo.Tasks {
		all.Go(func() {
			_, release, err := locker.WithContext(waits, todo.Key)
			guard.Lock()
			if err == nil {
				served++
				last = monotonic()
			} else if waits.Err() == nil {
				errors[err.Error()]++
			}
			guard.Unlock()
			if err == nil {
				release()
			}
		})
	}
	reply(map[string]any{"asked": todo.Tasks})
	order()
	timer := time.AfterFunc(seconds(limit), giveUp)
	all.Wait()
	timer.Stop()
	reply(map[string]any{"served": served, "last": last, "errors": errors})
}
