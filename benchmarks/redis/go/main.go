// rueidislock as a worker: the jobs hand_over, hold and wait_together of harness/worker.py.
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
	Kind  string
	URL   string
	Lease float64
	Key   string
	Tasks int
}

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
		NoLoopTracking: true,
		KeyValidity:    time.Duration(todo.Lease * float64(time.Second)),
	})
	must(err)
	defer locker.Close()
	reply(map[string]any{"ready": true})
	switch todo.Kind {
	case "hand_over":
		handOver(locker, todo)
	case "hold":
		hold(locker, todo)
	case "wait_together":
		waitTogether(locker, todo)
	default:
		must(fmt.Errorf("no job %q here", todo.Kind))
	}
}

func handOver(locker rueidislock.Locker, todo job) {
	for word := order(); word != "" && word != "end"; word = order() {
		seconds, err := strconv.ParseFloat(word, 64)
		must(err)
		_, release, err := locker.WithContext(context.Background(), todo.Key)
		must(err)
		reply(map[string]any{"got_in": monotonic()})
		time.Sleep(time.Duration(seconds * float64(time.Second)))
		left := monotonic()
		release()
		reply(map[string]any{"left": left})
	}
}

func hold(locker rueidislock.Locker, todo job) {
	order()
	_, release, err := locker.WithContext(context.Background(), todo.Key)
	must(err)
	reply(map[string]any{"got_in": monotonic()})
	order()
	left := monotonic()
	release()
	reply(map[string]any{"left": left})
}

func waitTogether(locker rueidislock.Locker, todo job) {
	order()
	var guard sync.Mutex
	var all sync.WaitGroup
	served, last, errors := 0, 0.0, map[string]int{}
	for range todo.Tasks {
		all.Go(func() {
			_, release, err := locker.WithContext(context.Background(), todo.Key)
			guard.Lock()
			if err != nil {
				errors[err.Error()]++
			} else {
				served++
				last = monotonic()
			}
			guard.Unlock()
			if err == nil {
				release()
			}
		})
	}
	reply(map[string]any{"asked": todo.Tasks})
	order()
	all.Wait()
	reply(map[string]any{"served": served, "last": last, "errors": errors})
}
