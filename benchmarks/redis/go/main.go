// rueidislock as a worker: the jobs baton, hold and crowd of ../../shared/jobs, in the same words.
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

func say(words map[string]any) {
	line, err := json.Marshal(words)
	must(err)
	fmt.Println(string(line))
}

func hear() string {
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
	say(map[string]any{"ready": true})
	switch todo.Kind {
	case "baton":
		baton(locker, todo)
	case "hold":
		hold(locker, todo)
	case "crowd":
		crowd(locker, todo)
	default:
		must(fmt.Errorf("no job %q here", todo.Kind))
	}
}

func baton(locker rueidislock.Locker, todo job) {
	for word := hear(); word != "" && word != "end"; word = hear() {
		seconds, err := strconv.ParseFloat(word, 64)
		must(err)
		_, release, err := locker.WithContext(context.Background(), todo.Key)
		must(err)
		say(map[string]any{"got_in": monotonic()})
		time.Sleep(time.Duration(seconds * float64(time.Second)))
		left := monotonic()
		release()
		say(map[string]any{"left": left})
	}
}

func hold(locker rueidislock.Locker, todo job) {
	hear()
	_, release, err := locker.WithContext(context.Background(), todo.Key)
	must(err)
	say(map[string]any{"got_in": monotonic()})
	hear()
	left := monotonic()
	release()
	say(map[string]any{"left": left})
}

func crowd(locker rueidislock.Locker, todo job) {
	hear()
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
	say(map[string]any{"asked": todo.Tasks})
	hear()
	all.Wait()
	say(map[string]any{"served": served, "last": last, "errors": errors})
}
