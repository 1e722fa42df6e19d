package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
)

// event is one line of a history; aiorwlock_remote/testing/events.py says what the
// fields mean. Times are nanoseconds.
type event struct {
	Kind     string `json:"e"`
	Process  string `json:"p"`
	Resource string `json:"r"`
	Holder   string `json:"h"`
	Mode     string `json:"m"` // "R" or "W"
	At       int64  `json:"t"`
	AskedAt  int64  `json:"a"`
	Fence    int64  `json:"f"`
	Until    *int64 `json:"u"` // nil: for ever
	Step     int64  `json:"n"`
	Serial   *int64 `json:"s"`  // nil: refused by the fence
	OK       *bool  `json:"ok"` // nil: not known
}

var kinds = map[string]bool{
	"ask": true, "granted": true, "refused": true, "failed": true, "unknown": true,
	"access": true, "releasing": true, "released": true, "lost": true, "died": true,
}

// read returns the events of all files. A torn last line is what a killed process
// leaves; any other line that is no event is an error.
func read(paths []string) ([]event, error) {
	var history []event
	for _, path := range paths {
		events, err := readFile(path)
		if err != nil {
			return nil, err
		}
		history = append(history, events...)
	}
	return history, nil
}

func readFile(path string) ([]event, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()

	var events []event
	lines := bufio.NewReader(file)
	for number := 1; ; number++ {
		line, err := lines.ReadBytes('\n')
		last := errors.Is(err, io.EOF)
		if err != nil && !last {
			return nil, err
		}
		if last && len(line) == 0 {
			return events, nil
		}
		var e event
		err = json.Unmarshal(line, &e)
		if err == nil && !kinds[e.Kind] {
			err = fmt.Errorf("no known event: %q", e.Kind)
		}
		if err == nil {
			events = append(events, e)
		} else if !last {
			return nil, fmt.Errorf("%s:%d: %w", path, number, err)
		}
	}
}
