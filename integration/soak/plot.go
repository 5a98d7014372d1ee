package main

import (
	"fmt"
	"io"
	"strings"
	"text/template"
)

// The drawing: one panel for each measure, one below the other, with the time from left to right.
const (
	panelWidth, panelHeight = 720, 90
	marginLeft, marginTop   = 70, 24
)

type panel struct {
	Title, Max, Line string
	Y                int
}

var panels = []struct {
	title string
	of    func(sample) float64
}{
	{"messages/s", func(s sample) float64 { return s.perSecond }},
	{"p50, ms from publish to the end of the second consumer", func(s sample) float64 { return s.p50 }},
	{"p99, ms", func(s sample) float64 { return s.p99 }},
	{"live heap, MiB", func(s sample) float64 { return s.heap }},
	{"memory, MiB", func(s sample) float64 { return s.memory }},
	{"goroutines", func(s sample) float64 { return s.goroutines }},
	{"inbox and outbox tables, MiB", func(s sample) float64 { return s.tables }},
}

var drawing = template.Must(template.New("svg").Parse(`<svg xmlns="http://www.w3.org/2000/svg" width="{{.Width}}" height="{{.Height}}" font-family="sans-serif" font-size="12">
<rect width="100%" height="100%" fill="white"/>
{{range .Panels}}<g transform="translate({{$.Left}},{{.Y}})">
<text y="-6">{{.Title}}</text>
<text x="-6" y="10" text-anchor="end">{{.Max}}</text><text x="-6" y="{{$.Tall}}" text-anchor="end">0</text>
<rect width="{{$.Wide}}" height="{{$.Tall}}" fill="none" stroke="#ccc"/>
<polyline fill="none" stroke="#1f5fa8" points="{{.Line}}"/>
</g>
{{end}}<text x="{{.Left}}" y="{{.Foot}}">{{.Caption}}</text>
</svg>
`))

// draw writes the samples as a drawing in SVG. Each panel begins at zero.
func draw(w io.Writer, samples []sample) error {
	if len(samples) < 2 {
		return fmt.Errorf("%d samples: too few to draw", len(samples))
	}
	last := samples[len(samples)-1].seconds
	all := make([]panel, len(panels))
	for i, p := range panels {
		top := 0.0
		for _, s := range samples {
			top = max(top, p.of(s))
		}
		points := make([]string, len(samples))
		for j, s := range samples {
			y := float64(panelHeight)
			if top > 0 {
				y -= p.of(s) / top * panelHeight
			}
			points[j] = fmt.Sprintf("%.1f,%.1f", s.seconds/last*panelWidth, y)
		}
		all[i] = panel{
			Title: p.title, Max: label(top), Line: strings.Join(points, " "),
			Y: marginTop + i*(panelHeight+marginTop),
		}
	}
	bottom := marginTop + len(panels)*(panelHeight+marginTop)
	return drawing.Execute(w, map[string]any{
		"Panels": all, "Left": marginLeft, "Wide": panelWidth, "Tall": panelHeight,
		"Width": marginLeft + panelWidth + 20, "Foot": bottom, "Height": bottom + 16,
		"Caption": fmt.Sprintf("%.0f minutes, a sample every %.0f s", last/60, last/float64(len(samples))),
	})
}

// label is the number at the top of a panel.
func label(top float64) string {
	if top < 100 {
		return fmt.Sprintf("%.1f", top)
	}
	return fmt.Sprintf("%.0f", top)
}
