package main

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
)

// The marks in a document between which tables are written.
const (
	beginMark = "<!-- what follows is written by make bench -->"
	endMark   = "<!-- up to here -->"
)

// write puts the section of a scenario between the marks of a document, in place of
// the one that it has there. Those of others stay.
func write(doc, title, text string) error {
	old, err := os.ReadFile(doc)
	if err != nil {
		return err
	}
	whole, err := splice(string(old), title, text)
	if err != nil {
		return fmt.Errorf("%s: %w", doc, err)
	}
	return os.WriteFile(doc, []byte(whole), 0o644) //nolint:gosec // a document for all to read
}

// heading begins a section.
const heading = "\n### "

func splice(doc, title, text string) (string, error) {
	before, rest, begins := strings.Cut(doc, beginMark)
	written, after, ends := strings.Cut(rest, endMark)
	if !begins || !ends {
		return "", errors.New("there are no two marks to write between")
	}
	section := title + "\n\n" + strings.TrimSpace(text)
	all := strings.Split(written, heading)[1:]
	at := slices.IndexFunc(all, func(s string) bool { return strings.HasPrefix(s, title+"\n") })
	if at < 0 {
		all = append(all, section)
	} else {
		all[at] = section
	}
	var b strings.Builder
	b.WriteString(before + beginMark + "\n")
	for _, s := range all {
		b.WriteString(heading + strings.TrimSpace(s) + "\n")
	}
	b.WriteString("\n" + endMark + after)
	return b.String(), nil
}

// section is what the document has of a scenario: the tables that it has printed,
// with the names above them where there are several, or else its figures, and
// whether it has failed.
func section(said string, failed error) string {
	var b strings.Builder
	if failed != nil {
		b.WriteString("It has failed, and what follows is what it said before.\n\n")
	}
	tables := tablesOf(said)
	if len(tables) == 0 {
		tables = []table{{rows: figures(said)}}
	}
	for _, t := range tables {
		if len(tables) > 1 {
			fmt.Fprintf(&b, "`%s`\n\n", t.name)
		}
		b.WriteString(strings.Join(t.rows, "\n") + "\n\n")
	}
	return strings.TrimRight(b.String(), "\n") + "\n"
}

// table is one in Markdown.
type table struct {
	name string // of the benchmark
	rows []string
}

var named = regexp.MustCompile(`^Benchmark\S+$`)

// tablesOf finds the tables in what a benchmark has printed, each below its name.
func tablesOf(said string) []table {
	var all []table
	name, inside := "", false
	for line := range strings.Lines(said) {
		line = strings.TrimRight(line, "\n")
		switch row := strings.HasPrefix(line, "|"); {
		case row && !inside:
			all = append(all, table{name, []string{line}})
		case row:
			last := &all[len(all)-1]
			last.rows = append(last.rows, line)
		case named.MatchString(line):
			name = line
		}
		inside = strings.HasPrefix(line, "|")
	}
	return all
}

// figures are the metrics of a benchmark's line, as a table.
func figures(said string) []string {
	rows := []string{"| | |", "|---|---|"}
	for line := range strings.Lines(said) {
		fields := strings.Fields(line)
		if len(fields) < 4 || !strings.HasPrefix(line, "Benchmark") {
			continue
		}
		for i := 2; i+1 < len(fields); i += 2 {
			if fields[i+1] != "ns/op" {
				rows = append(rows, fmt.Sprintf("| %s | %s |", fields[i+1], fields[i]))
			}
		}
	}
	return rows
}
