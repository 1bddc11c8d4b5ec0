package bench

import (
	"fmt"
	"math"
	"strings"
)

// Plot is a picture of how figures grow: lines over an axis of powers of ten.
type Plot struct {
	Title string
	Along string    // what the axis below counts
	At    []float64 // where the figures were taken, rising, above 0
	Lines []Line
}

// Line is one figure at each of the places.
type Line struct {
	Name string
	Unit string
	Of   []float64
}

// The picture, in its own units.
const (
	plotWidth  = 720
	plotHeight = 360
	plotLeft   = 60
	plotRight  = 250 // for the names of lines
	plotTop    = 40
	plotBottom = 50
)

// colours tell lines apart, for those who do not see all colours, too.
var colours = []string{"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000"}

// SVG draws the plot. The axis to the left begins at nothing, so that what is flat
// looks flat.
func (p Plot) SVG() string {
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="12">`+"\n", plotWidth, plotHeight)
	fmt.Fprintf(&b, `<rect width="%d" height="%d" fill="white"/><text x="%d" y="20" font-size="14">%s</text>`+"\n", plotWidth, plotHeight, plotLeft, escape(p.Title))
	top := p.top()
	for i := range 5 {
		value := top * float64(i) / 4
		fmt.Fprintf(&b, `<line x1="%d" x2="%d" y1="%.1f" y2="%.1f" stroke="#ddd"/><text x="%d" y="%.1f" text-anchor="end">%s</text>`+"\n",
			plotLeft, plotWidth-plotRight, p.y(value, top), p.y(value, top), plotLeft-6, p.y(value, top)+4, short(value))
	}
	for _, at := range p.At {
		fmt.Fprintf(&b, `<text x="%.1f" y="%d" text-anchor="middle">%s</text>`+"\n", p.x(at), plotHeight-plotBottom+18, short(at))
	}
	fmt.Fprintf(&b, `<text x="%d" y="%d" text-anchor="middle">%s</text>`+"\n", (plotLeft+plotWidth-plotRight)/2, plotHeight-12, escape(p.Along))
	for i, line := range p.Lines {
		p.line(&b, line, colours[i%len(colours)], plotTop+10+20*i, top)
	}
	b.WriteString("</svg>\n")
	return b.String()
}

func (p Plot) line(b *strings.Builder, line Line, colour string, nameAt int, top float64) {
	var points []string
	for i, value := range line.Of {
		points = append(points, fmt.Sprintf("%.1f,%.1f", p.x(p.At[i]), p.y(value, top)))
	}
	fmt.Fprintf(b, `<polyline fill="none" stroke="%s" stroke-width="2" points="%s"/>`+"\n", colour, strings.Join(points, " "))
	for _, at := range points {
		x, y, _ := strings.Cut(at, ",")
		fmt.Fprintf(b, `<circle cx="%s" cy="%s" r="3" fill="%s"/>`+"\n", x, y, colour)
	}
	left := plotWidth - plotRight + 20
	fmt.Fprintf(b, `<line x1="%d" x2="%d" y1="%d" y2="%d" stroke="%s" stroke-width="2"/><text x="%d" y="%d">%s</text>`+"\n",
		left, left+20, nameAt, nameAt, colour, left+26, nameAt+4, escape(line.Name+", "+line.Unit))
}

// top is the end of the axis to the left: a round number that no figure is above.
func (p Plot) top() float64 {
	most := 0.0
	for _, line := range p.Lines {
		for _, value := range line.Of {
			most = max(most, value)
		}
	}
	if most == 0 {
		return 1
	}
	scale := math.Pow(10, math.Floor(math.Log10(most)))
	for _, step := range []float64{1, 2, 4, 6, 8} {
		if most <= step*scale {
			return step * scale
		}
	}
	return 10 * scale
}

func (p Plot) x(at float64) float64 {
	first, last := math.Log10(p.At[0]), math.Log10(p.At[len(p.At)-1])
	width := float64(plotWidth - plotRight - plotLeft)
	if first == last {
		return plotLeft + width/2
	}
	return plotLeft + width*(math.Log10(at)-first)/(last-first)
}

func (p Plot) y(value, top float64) float64 {
	return plotHeight - plotBottom - (plotHeight-plotBottom-plotTop)*value/top
}

// short is a number as an axis has it.
func short(value float64) string {
	if value >= 1000 {
		return fmt.Sprintf("%gk", value/1000)
	}
	return fmt.Sprintf("%g", value)
}

func escape(text string) string {
	return strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;").Replace(text)
}
