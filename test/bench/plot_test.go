package bench_test

import (
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"

	"setpoint.dev/setpoint/test/bench"
)

func TestPlot(t *testing.T) {
	p := bench.Plot{Title: "A < B", Along: "objects", At: []float64{1000, 10_000, 100_000}, Lines: []bench.Line{
		{Name: "flat", Unit: "µs", Of: []float64{50, 50, 50}}, {Name: "rising", Unit: "µs", Of: []float64{10, 100, 190}},
	}}
	picture := p.SVG()
	for d := xml.NewDecoder(strings.NewReader(picture)); ; {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("not XML: %v", err)
		}
	}
	for _, want := range []string{
		"A &lt; B", ">100k<", ">200<", // the axes
		`points="60.0,242.5 265.0,242.5 470.0,242.5"`, // a quarter of 200, all the way
		`points="60.0,296.5 265.0,175.0 470.0,53.5"`,
	} {
		if !strings.Contains(picture, want) {
			t.Errorf("no %s in %s", want, picture)
		}
	}
}
