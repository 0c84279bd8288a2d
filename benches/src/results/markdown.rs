//! The table of `benches/README.md`, made of the files of a run.

use super::cells::{CELLS, EXACT};
use super::gates::ON_SMALL_PAGES;
use super::{Row, RunFile};
use std::fmt::Write;

/// The line of the README after which the table stands.
pub const BEGIN: &str = "<!-- results: begin, made by the `summary` command -->";
/// The line before which it ends.
pub const END: &str = "<!-- results: end -->";

/// Puts the table between the marks of a README. `None` where it has no marks.
pub fn into_readme(readme: &str, table: &str) -> Option<String> {
    let (before, rest) = readme.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{BEGIN}\n\n{}\n\n{END}{after}", table.trim_end()))
}

/// The whole table.
pub fn markdown(files: &[RunFile]) -> String {
    if files.is_empty() {
        return "No run of the whole table is kept yet.\n".to_owned();
    }
    let mut text = String::new();
    provenance(files, &mut text);
    let mut sections: Vec<&str> = CELLS.iter().map(|cell| cell.section).collect();
    sections.dedup();
    for section in sections {
        let in_section = |file: &&RunFile| CELLS.iter().any(|cell| cell.name == file.cell && cell.section == section);
        let of_section: Vec<&RunFile> = files.iter().filter(in_section).collect();
        if of_section.is_empty() {
            continue;
        }
        let _ = writeln!(text, "### {section}\n");
        if section == EXACT {
            exactness(&of_section, &mut text);
        } else if of_section.iter().all(|file| file.outcome.is_some()) {
            churn(&of_section, &mut text);
        } else {
            lines(&of_section, &mut text);
        }
    }
    text
}

fn provenance(files: &[RunFile], text: &mut String) {
    let rows: Vec<Row> = files.iter().flat_map(RunFile::rows).filter(|row| row.gate.is_some()).collect();
    let short = rows.iter().filter(|row| row.passed == Some(false)).count();
    let minutes = files.iter().map(|file| file.took_s).sum::<u64>() as f64 / 60.0;
    let list = |of: fn(&RunFile) -> String| {
        let mut all: Vec<String> = files.iter().map(of).collect();
        all.sort();
        all.dedup();
        all.join("; ")
    };
    let _ = writeln!(
        text,
        "{} figures have a gate, {short} fall short of it. {minutes:.0} minutes on {}; commit {}.\n",
        rows.len(),
        list(|file| file.provenance.machine.line()),
        list(|file| file.provenance.commit.clone())
    );
}

/// A line for each figure that has a gate in some cell, or would have one on the service's pages; a column for each cell.
fn churn(files: &[&RunFile], text: &mut String) {
    let all: Vec<Vec<Row>> = files.iter().map(|file| file.rows()).collect();
    let mut figures: Vec<(&str, &str)> = Vec::new();
    let shown = |row: &&Row| row.gate.is_some() || row.what == "cold lookup p50" || row.what.ends_with(ON_SMALL_PAGES);
    for row in all.iter().flatten().filter(shown) {
        if !figures.contains(&(&row.what, &row.rival)) {
            figures.push((&row.what, &row.rival));
        }
    }
    let _ = writeln!(text, "| what, against | {} |", join(files.iter().map(|file| file.cell.clone())));
    let _ = writeln!(text, "|---|{}", "---|".repeat(files.len()));
    for rival in ["kv-index", "crtc", ""] {
        let is_named = |name: &str| name == rival || (rival.is_empty() && name != "kv-index" && name != "crtc");
        for (what, rival) in figures.iter().filter(|figure| is_named(figure.1)) {
            let entry = |rows: &Vec<Row>| rows.iter().find(|row| row.what == *what && row.rival == *rival).map(entry);
            let entries = join(all.iter().map(|rows| entry(rows).unwrap_or_default()));
            let _ = writeln!(text, "| {what}, {rival} | {entries} |");
        }
    }
    text.push('\n');
}

/// A line for each figure.
fn lines(files: &[&RunFile], text: &mut String) {
    let _ = writeln!(text, "| cell | what | against | ours, theirs: ratio [95 %] |\n|---|---|---|---|");
    for row in files.iter().flat_map(|file| file.rows()) {
        let _ = writeln!(text, "| {} | {} | {} | {} |", row.cell, row.what, row.rival, entry(&row));
    }
    text.push('\n');
}

fn entry(row: &Row) -> String {
    let Row { ours, theirs, ratio, .. } = row;
    let counted = ratio.low == ratio.value && ratio.high == ratio.value;
    let interval = if counted { String::new() } else { format!(" [{:.2}, {:.2}]", ratio.low, ratio.high) };
    // Two places are enough for every gate; what is whole stays short.
    let gate = row.gate.map(|gate| (gate * 100.0).round() / 100.0);
    let gate = match (gate, row.passed) {
        (Some(gate), Some(true)) => format!("; {gate} met"),
        (Some(gate), _) => format!("; **{gate} short**"),
        _ => String::new(),
    };
    format!("{}, {}: {:.2}{interval}{gate}", figure(*ours), figure(*theirs), ratio.value)
}

/// Three digits that count.
fn figure(value: f64) -> String {
    match value {
        value if value >= 100.0 => format!("{value:.0}"),
        value if value >= 10.0 => format!("{value:.1}"),
        value => format!("{value:.2}"),
    }
}

fn join(words: impl Iterator<Item = String>) -> String {
    words.collect::<Vec<_>>().join(" | ")
}

/// How many lookups differ from the oracle's, by naming and holes, over all block sizes and sharings.
fn exactness(files: &[&RunFile], text: &mut String) {
    let rows: Vec<Row> = files.iter().flat_map(|file| file.rows()).collect();
    let mut indexes: Vec<&str> = rows.iter().map(|row| row.rival.as_str()).collect();
    indexes.sort_unstable();
    indexes.dedup();
    let heads = join(indexes.iter().map(|index| format!("{index} differs")));
    let _ = writeln!(
        text,
        "| names | evictions at random | lookups | {heads} |\n|---|---|---|{}",
        "---|".repeat(indexes.len())
    );
    for (names, holes) in ["same", "random"].into_iter().flat_map(|names| [0, 10, 200].map(|holes| (names, holes))) {
        let is_here = |row: &&Row| row.cell.contains(names) && row.cell.ends_with(&format!("holes-{holes}"));
        let sums = |index: &str| {
            let of_index = rows.iter().filter(is_here).filter(|row| row.rival == index);
            of_index.fold((0.0, 0.0), |sum, row| (sum.0 + row.ours, sum.1 + row.theirs))
        };
        let compared = indexes.first().map_or(0.0, |index| sums(index).1);
        let differ = join(indexes.iter().map(|index| sums(index).0.to_string()));
        let _ = writeln!(text, "| {names} | {} % | {compared} | {differ} |", f64::from(holes) / 10.0);
    }
    text.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_stands_between_the_marks() {
        let readme = format!("before\n{BEGIN}\nold\n{END}\nafter\n");
        let once = into_readme(&readme, "| new |\n").unwrap();
        assert!(once.starts_with("before\n") && once.ends_with("\nafter\n") && once.contains("| new |"), "{once}");
        assert!(!once.contains("old"));
        assert_eq!(into_readme(&once, "| new |\n").unwrap(), once);
        assert_eq!(into_readme("no marks", ""), None);
    }

    #[test]
    fn an_entry_says_what_was_measured_and_whether_it_is_enough() {
        let mut row = Row::plain("cell", "bytes", "kv-index", (3.5, 37.75), Some(8.0));
        assert_eq!(entry(&row), "3.50, 37.8: 10.79; 8 met");
        row.passed = Some(false);
        row.ratio.low = 10.0;
        assert_eq!(entry(&row), "3.50, 37.8: 10.79 [10.00, 10.79]; **8 short**");
    }
}
