package page

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/dovetail-sh/dovetail/engine/simulate/replay"
)

// chart is a picture of lines over time, in the coordinates of an SVG.
type chart struct {
	Title, About string
	Lines        []line
	Across, Down []tick
	// Width and Height are those of the picture, Left and so on those of the plot in it.
	Width, Height            int
	Left, Top, Right, Bottom int
}

type line struct {
	Name string
	// Class is s1 to s4 for its colour.
	Class string
	// Path is the line, Area the same closed to the axis; empty if it is not filled.
	Path, Area string
	// Mean is its mean for people.
	Mean string
}

type tick struct {
	At    int
	Label string
}

const (
	chartWidth, chartHeight = 960, 250
	chartLeft, chartRight   = 70, 945
	chartTop, chartBottom   = 12, 215
)

// series is what a line shows.
type series struct {
	name   string
	values func(*replay.Sample) float64
	run    *replay.Report
}

func charts(runs []*replay.Report) []chart {
	r := runs[0]
	if len(r.Cost.Curve) < 2 {
		return nil
	}
	var cost []series
	for _, run := range runs {
		cost = append(cost, series{run.Name(), func(s *replay.Sample) float64 { return s.Hourly }, run})
	}
	if len(runs) == 1 && r.Cost.ByCapacity["spot"] > 0 {
		cost = append(cost, series{"of which spot", func(s *replay.Sample) float64 { return s.Spot }, r})
	}
	var nodes []series
	for _, run := range runs {
		nodes = append(nodes, series{run.Name(), func(s *replay.Sample) float64 { return s.Nodes }, run})
	}
	out := []chart{
		draw("Cost per hour", "What all nodes together cost, in US dollars per hour.", dollars, cost),
		draw("Nodes", "How many nodes were paid for.", plain, nodes),
		draw("Pods", "How many pods had a node, and how many waited for one.", plain, []series{
			{"running", func(s *replay.Sample) float64 { return s.Running }, r},
			{"waiting", func(s *replay.Sample) float64 { return s.Pending }, r},
		}),
		draw("Requested", "What pods asked for, in percent of what nodes had.", share, []series{
			{"CPU", func(s *replay.Sample) float64 { return s.CPU }, r},
			{"memory", func(s *replay.Sample) float64 { return s.Memory }, r},
		}),
	}
	return out
}

func plain(f float64) string {
	if f == math.Trunc(f) {
		return fmt.Sprintf("%.0f", f)
	}
	return fmt.Sprintf("%.1f", f)
}

func share(f float64) string { return plain(f) + " %" }

func draw(title, about string, label func(float64) string, list []series) chart {
	c := chart{Title: title, About: about, Width: chartWidth, Height: chartHeight, Left: chartLeft, Top: chartTop, Right: chartRight, Bottom: chartBottom}
	highest := 0.0
	start, end := list[0].run.Start, list[0].run.End
	for _, s := range list {
		for i := range s.run.Cost.Curve {
			highest = max(highest, s.values(&s.run.Cost.Curve[i]))
		}
		if s.run.End.After(end) {
			end = s.run.End
		}
	}
	step := niceStep(highest)
	top := max(math.Ceil(highest/step)*step, step)
	y := func(v float64) float64 { return chartBottom - v/top*(chartBottom-chartTop) }
	x := func(t time.Time) float64 {
		return chartLeft + t.Sub(start).Seconds()/max(end.Sub(start).Seconds(), 1)*(chartRight-chartLeft)
	}
	for v := 0.0; v <= top+step/2; v += step {
		c.Down = append(c.Down, tick{int(math.Round(y(v))), label(v)})
	}
	c.Across = acrossTicks(start, end, x)
	for i, s := range list {
		var b strings.Builder
		sum := 0.0
		curve := s.run.Cost.Curve
		for j := range curve {
			v := s.values(&curve[j])
			sum += v
			to := s.run.End
			if j+1 < len(curve) {
				to = curve[j+1].At
			}
			verb := "L"
			if j == 0 {
				verb = "M"
			}
			fmt.Fprintf(&b, "%s%.1f %.1fL%.1f %.1f", verb, x(curve[j].At), y(v), x(to), y(v))
		}
		l := line{Name: s.name, Class: fmt.Sprintf("s%d", i%4+1), Path: b.String(), Mean: label(math.Round(sum/float64(len(curve))*10000) / 10000)}
		if len(list) == 1 || i == 0 {
			l.Area = l.Path + fmt.Sprintf("L%.1f %dL%d %dZ", x(s.run.End), chartBottom, chartLeft, chartBottom)
		}
		c.Lines = append(c.Lines, l)
	}
	return c
}

// niceStep divides a height into about four parts of a round size.
func niceStep(highest float64) float64 {
	if highest <= 0 {
		return 1
	}
	raw := highest / 4
	power := math.Pow(10, math.Floor(math.Log10(raw)))
	for _, m := range []float64{1, 2, 2.5, 5, 10} {
		if m*power >= raw {
			return m * power
		}
	}
	return 10 * power
}

// acrossTicks are about six round times.
func acrossTicks(start, end time.Time, x func(time.Time) float64) []tick {
	span := end.Sub(start)
	step := 24 * time.Hour
	for _, s := range []time.Duration{
		10 * time.Second, 30 * time.Second, time.Minute, 5 * time.Minute, 10 * time.Minute, 30 * time.Minute, time.Hour, 2 * time.Hour, 6 * time.Hour, 12 * time.Hour,
		24 * time.Hour, 2 * 24 * time.Hour, 7 * 24 * time.Hour, 14 * 24 * time.Hour, 30 * 24 * time.Hour, 90 * 24 * time.Hour, 365 * 24 * time.Hour, 3650 * 24 * time.Hour,
	} {
		step = s
		if span/s <= 7 {
			break
		}
	}
	var out []tick
	for d := time.Duration(0); d <= span; d += step {
		label := d.String()
		switch {
		case step >= 24*time.Hour:
			label = fmt.Sprintf("day %d", int(d.Hours()/24)+1)
		case step >= time.Hour:
			label = fmt.Sprintf("%d h", int(d.Hours()))
		case step >= time.Minute:
			label = fmt.Sprintf("%d min", int(d.Minutes()))
		}
		out = append(out, tick{int(math.Round(x(start.Add(d)))), label})
	}
	return out
}
