package main

import (
	"errors"
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
	doc := "# About\n\n### Ours\n\nbefore\n\n" + beginMark + "\n\nnothing yet\n\n" + endMark + "\n\n### After\n"
	for _, step := range []struct{ title, text, want string }{
		{"A", "first\n", "\n### A\n\nfirst\n"},
		{"A and B", "more\n", "\n### A\n\nfirst\n\n### A and B\n\nmore\n"},
		{"A", "again\n", "\n### A\n\nagain\n\n### A and B\n\nmore\n"},
	} {
		var err error
		if doc, err = splice(doc, step.title, step.text); err != nil {
			t.Fatal(err)
		}
		if want := "# About\n\n### Ours\n\nbefore\n\n" + beginMark + "\n" + step.want + "\n" + endMark + "\n\n### After\n"; doc != want {
			t.Errorf("got\n%s\nwant\n%s", doc, want)
		}
	}
	if _, err := splice("no marks", "A", "new"); err == nil {
		t.Error("a document without marks was written")
	}
}
