//! Charts as SVG text: lines over logarithmic axes and horizontal bars. Colours come from the page's style sheet, so a chart
//! is readable on light and on dark ground; series also differ in dash and marker.

use crate::ladder::campaign::amount;
use crate::ladder::statistics::Interval;
use std::fmt::Write;

const WIDTH: f64 = 420.0;
const HEIGHT: f64 = 270.0;
const LEFT: f64 = 58.0;
const RIGHT: f64 = 14.0;
const TOP: f64 = 12.0;
const BOTTOM: f64 = 46.0;

/// One line of a chart.
#[derive(Clone, Debug)]
pub struct Line {
    /// What it shows.
    pub name: String,
    /// Number of its colour, dash and marker.
    pub style: usize,
    /// Points: x, and y with its interval.
    pub points: Vec<(f64, Interval)>,
}

/// Axes of a chart.
#[derive(Clone, Copy, Debug)]
pub struct Axes<'a> {
    /// What lies along x, with its unit.
    pub x: &'a str,
    /// What lies along y, with its unit.
    pub y: &'a str,
    /// Whether to draw y = x.
    pub diagonal: bool,
    /// How a y value is written.
    pub show: fn(f64) -> String,
}

/// A logarithmic scale.
#[derive(Clone, Copy, Debug)]
struct Scale {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

impl Scale {
    /// A scale over all values, widened to whole steps. `None` without a positive value.
    fn over(values: impl Iterator<Item = f64>, from: f64, to: f64) -> Option<Scale> {
        let mut range: Option<(f64, f64)> = None;
        for value in values.filter(|v| v.is_finite() && *v > 0.0) {
            let (low, high) = range.unwrap_or((value, value));
            range = Some((low.min(value), high.max(value)));
        }
        let (low, high) = range?;
        let wide = if high / low < 4.0 { 2.0 } else { 1.25 };
        Some(Scale { low: low / wide, high: high * wide, from, to })
    }

    fn place(&self, value: f64) -> f64 {
        let share = (value.max(self.low) / self.low).ln() / (self.high / self.low).ln();
        self.from + share.min(1.0) * (self.to - self.from)
    }

    /// 1, 2 and 5 times powers of ten; only powers where there are many.
    fn ticks(&self) -> Vec<f64> {
        let decades = (self.high / self.low).log10();
        let steps: &[f64] = if decades > 2.5 { &[1.0] } else { &[1.0, 2.0, 5.0] };
        let first = self.low.log10().floor() as i32;
        let all = (first..first + 24).flat_map(|power| steps.iter().map(move |step| step * 10f64.powi(power)));
        all.filter(|v| (self.low..=self.high).contains(v)).collect()
    }
}

/// Lines over logarithmic axes. Nothing to draw gives an empty note.
pub fn lines(axes: &Axes<'_>, lines: &[Line]) -> String {
    let points = || lines.iter().flat_map(|l| &l.points);
    let x = Scale::over(points().map(|p| p.0), LEFT, WIDTH - RIGHT);
    let y = Scale::over(points().flat_map(|p| [p.1.low, p.1.median, p.1.high]), HEIGHT - BOTTOM, TOP);
    let (Some(x), Some(y)) = (x, y) else { return "<p class=\"none\">nothing measured</p>".to_owned() };
    let mut svg = format!(
        "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{} over {}\">",
        escape(axes.y),
        escape(axes.x)
    );
    draw_axes(&mut svg, axes, &x, &y);
    if axes.diagonal {
        let (low, high) = (x.low.max(y.low), x.high.min(y.high));
        let (x1, y1, x2, y2) = (x.place(low), y.place(low), x.place(high), y.place(high));
        let _ = write!(svg, "<line class=\"diagonal\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"/>");
    }
    lines.iter().for_each(|line| draw_line(&mut svg, line, axes, &x, &y));
    svg.push_str("</svg>");
    svg
}

fn draw_axes(svg: &mut String, axes: &Axes<'_>, x: &Scale, y: &Scale) {
    for tick in y.ticks() {
        let at = y.place(tick);
        let _ =
            write!(svg, "<line class=\"grid\" x1=\"{LEFT}\" y1=\"{at:.1}\" x2=\"{}\" y2=\"{at:.1}\"/>", WIDTH - RIGHT);
        let _ =
            write!(svg, "<text x=\"{}\" y=\"{:.1}\" class=\"end\">{}</text>", LEFT - 6.0, at + 3.5, (axes.show)(tick));
    }
    let mut free_from = 0.0;
    for tick in x.ticks() {
        let at = x.place(tick);
        let _ =
            write!(svg, "<line class=\"grid\" x1=\"{at:.1}\" y1=\"{TOP}\" x2=\"{at:.1}\" y2=\"{}\"/>", HEIGHT - BOTTOM);
        if at >= free_from {
            let _ = write!(
                svg,
                "<text x=\"{at:.1}\" y=\"{}\" class=\"middle\">{}</text>",
                HEIGHT - BOTTOM + 15.0,
                short(tick)
            );
            free_from = at + 34.0;
        }
    }
    let middle = (LEFT + WIDTH - RIGHT) / 2.0;
    let _ =
        write!(svg, "<text x=\"{middle}\" y=\"{}\" class=\"middle label\">{}</text>", HEIGHT - 10.0, escape(axes.x));
    let up = (TOP + HEIGHT - BOTTOM) / 2.0;
    let _ = write!(
        svg,
        "<text x=\"12\" y=\"{up}\" class=\"middle label\" transform=\"rotate(-90 12 {up})\">{}</text>",
        escape(axes.y)
    );
}

fn draw_line(svg: &mut String, line: &Line, axes: &Axes<'_>, x: &Scale, y: &Scale) {
    let style = line.style % STYLES;
    let path: Vec<String> =
        line.points.iter().map(|(at, v)| format!("{:.1},{:.1}", x.place(*at), y.place(v.median))).collect();
    let _ = write!(svg, "<polyline class=\"line s{style}\" points=\"{}\"/>", path.join(" "));
    for (at, value) in &line.points {
        let (px, py) = (x.place(*at), y.place(value.median));
        let (low, high) = (y.place(value.low), y.place(value.high));
        let _ = write!(
            svg,
            "<line class=\"whisker s{style}\" x1=\"{px:.1}\" y1=\"{low:.1}\" x2=\"{px:.1}\" y2=\"{high:.1}\"/>"
        );
        let told = format!(
            "{} at {}: {} ({} to {})",
            line.name,
            amount(*at),
            (axes.show)(value.median),
            (axes.show)(value.low),
            (axes.show)(value.high)
        );
        let _ = write!(svg, "<g class=\"mark s{style}\">{}<title>{}</title></g>", marker(style, px, py), escape(&told));
    }
}

/// Looks that the style sheet knows.
pub const STYLES: usize = 6;

/// A marker's shape, by style.
pub fn marker(style: usize, x: f64, y: f64) -> String {
    match style % 4 {
        0 => format!("<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.4\"/>"),
        1 => format!("<rect x=\"{:.1}\" y=\"{:.1}\" width=\"6.4\" height=\"6.4\"/>", x - 3.2, y - 3.2),
        2 => format!("<path d=\"M{x:.1} {:.1}l4.2 7.4h-8.4z\"/>", y - 4.4),
        _ => format!("<path d=\"M{x:.1} {:.1}l4.4 4.4l-4.4 4.4l-4.4 -4.4z\"/>", y - 4.4),
    }
}

/// One bar.
#[derive(Clone, Debug)]
pub struct Bar {
    /// What it shows.
    pub name: String,
    /// Number of its colour.
    pub style: usize,
    /// Its length, with an interval where there is one.
    pub value: Interval,
    /// What is written behind it.
    pub told: String,
}

/// Horizontal bars from zero on.
pub fn bars(label: &str, bars: &[Bar]) -> String {
    const ROW: f64 = 34.0;
    const NAMES: f64 = 104.0;
    const TOLD: f64 = 262.0;
    const WIDE: f64 = 620.0;
    let longest = bars.iter().map(|b| b.value.high.max(b.value.median)).fold(0.0, f64::max);
    if longest <= 0.0 {
        return "<p class=\"none\">nothing measured</p>".to_owned();
    }
    let height = ROW * bars.len() as f64 + 6.0;
    let place = |value: f64| NAMES + value / longest * (WIDE - NAMES - TOLD);
    let mut svg = format!("<svg viewBox=\"0 0 {WIDE} {height}\" role=\"img\" aria-label=\"{}\">", escape(label));
    for (i, bar) in bars.iter().enumerate() {
        let (y, style) = (ROW * i as f64 + 4.0, bar.style % STYLES);
        let middle = y + 12.0;
        let _ = write!(
            svg,
            "<text x=\"{}\" y=\"{}\" class=\"end name\">{}</text>",
            NAMES - 8.0,
            middle + 4.0,
            escape(&bar.name)
        );
        let _ = write!(
            svg,
            "<rect class=\"bar s{style}\" x=\"{NAMES}\" y=\"{y}\" width=\"{:.1}\" height=\"24\" rx=\"2\"/>",
            place(bar.value.median) - NAMES
        );
        if bar.value.high > bar.value.low {
            let (from, to) = (place(bar.value.low), place(bar.value.high));
            let _ = write!(
                svg,
                "<path class=\"interval\" d=\"M{from:.1} {middle}H{to:.1}M{from:.1} {0}v10M{to:.1} {0}v10\"/>",
                middle - 5.0
            );
        }
        let after = place(bar.value.high.max(bar.value.median)) + 8.0;
        let _ = write!(svg, "<text x=\"{after:.1}\" y=\"{}\">{}</text>", middle + 4.0, escape(&bar.told));
    }
    svg.push_str("</svg>");
    svg
}

/// Text inside HTML.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// A round figure without needless digits: 20 M.
fn short(value: f64) -> String {
    let shown = amount(value);
    let (number, unit) = shown.split_at(shown.find(' ').unwrap_or(shown.len()));
    let number = if number.contains('.') { number.trim_end_matches('0').trim_end_matches('.') } else { number };
    format!("{number}{unit}")
}

/// Nanoseconds as a person reads them.
pub fn time(ns: f64) -> String {
    let (value, unit) = match ns {
        v if v >= 1e9 => (v / 1e9, "s"),
        v if v >= 1e6 => (v / 1e6, "ms"),
        v if v >= 1e3 => (v / 1e3, "µs"),
        v => (v, "ns"),
    };
    let digits = usize::from(value < 10.0 && unit != "ns" && value.fract() > 0.04);
    format!("{value:.digits$} {unit}")
}

/// As [`amount`], for axes.
pub fn round(value: f64) -> String {
    short(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_and_ticks_of_a_logarithmic_scale() {
        let scale = Scale { low: 1.0, high: 100.0, from: 0.0, to: 200.0 };
        assert_eq!([1.0, 10.0, 100.0, 1000.0, 0.0].map(|v| scale.place(v).round()), [0.0, 100.0, 200.0, 200.0, 0.0]);
        assert_eq!(scale.ticks(), [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0]);
        assert!(Scale::over([0.0, f64::NAN].into_iter(), 0.0, 1.0).is_none());
    }

    #[test]
    fn nothing_to_draw_is_said_and_names_are_escaped() {
        let axes = Axes { x: "x", y: "y", diagonal: true, show: time };
        assert!(lines(&axes, &[]).contains("nothing measured"));
        let line = Line {
            name: "<b>".to_owned(),
            style: 0,
            points: vec![(1.0, Interval::exactly(5.0)), (2.0, Interval::exactly(7.0))],
        };
        let svg = lines(&axes, &[line]);
        assert!(svg.contains("&lt;b&gt;") && !svg.contains("<b>") && svg.ends_with("</svg>"));
        assert!(bars("x", &[]).contains("nothing measured"));
    }

    #[test]
    fn times_and_round_amounts() {
        assert_eq!([30.0, 1500.0, 2e6, 12e9].map(time), ["30 ns", "1.5 µs", "2 ms", "12 s"]);
        assert_eq!([20e6, 5.0, 100.0].map(round), ["20 M", "5", "100"]);
    }
}
