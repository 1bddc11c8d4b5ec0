package main

import (
	"errors"
	"strings"
	"testing"
)

func TestSection(t *testing.T) {
	for _, c := range []struct {
		name, said string
		failed     error
		want       string
	}{
		{"one table", "goos: linux\nBenchmarkA\nBenchmarkA\n\n| a | b |\n|---|---|\n| x | 1 |\n\nBenchmarkA-2  1  5 x-ms\nPASS\n", nil, "| a | b |\n|---|---|\n| x | 1 |\n"},
		{
			"two tables", "BenchmarkA/pods\n\n| a |\n|---|\n\nBenchmarkA/maps\n\n| b |\n|---|\n", nil,
			"`BenchmarkA/pods`\n\n| a |\n|---|\n\n`BenchmarkA/maps`\n\n| b |\n|---|\n",
		},
		{"figures alone", "BenchmarkStart-2   1   0 ns/op   62.0 ready-ms   39.1 idle-MiB\n", nil, "| | |\n|---|---|\n| ready-ms | 62.0 |\n| idle-MiB | 39.1 |\n"},
		{
			"a failure", "BenchmarkA\n| a |\n|---|\n", errors.New("exit status 1"),
			"It has failed, and what follows is what it said before.\n\n| a |\n|---|\n",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := section(c.said, c.failed); got != c.want {
				t.Errorf("got\n%s\nwant\n%s", got, c.want)
			}
		})
	}
}

func TestSplice(t *testing.T) {
	doc := "# About\n\nbefore\n\n" + beginMark + "\n\nold\n\n" + endMark + "\n\nafter\n"
	got, err := splice(doc, "new\n")
	if err != nil || strings.Contains(got, "old") || !strings.Contains(got, "before") || !strings.Contains(got, "after") || !strings.Contains(got, "\n\nnew\n\n") {
		t.Errorf("%v: %q", err, got)
	}
	if again, err := splice(got, "new\n"); err != nil || again != got {
		t.Errorf("a second time: %v: %q", err, again)
	}
	if _, err := splice("no marks", "new"); err == nil {
		t.Error("a document without marks was written")
	}
}
