//! The churn cells by name.

use crate::churn::Cell;
use kvatlas_corpora::{Names, Parameters, Sharing};

/// The churn cell of a name: SHARING-NAMES-TOKENS with any of `-one` and `-best-fill`.
pub fn of_name(name: &str, quick: bool, windows: Option<usize>) -> Result<Cell, String> {
    let unknown = || format!("unknown cell {name}");
    let mut words = name.splitn(4, '-');
    let sharing = match words.next() {
        Some("high") => Sharing::High,
        Some("standard") => Sharing::Standard,
        Some("low") => Sharing::Low,
        _ => return Err(unknown()),
    };
    let names = match words.next() {
        Some("same") => Names::Same,
        Some("random") => Names::Random,
        _ => return Err(unknown()),
    };
    let tokens: u32 = words.next().and_then(|tokens| tokens.parse().ok()).ok_or_else(unknown)?;
    let variant = words.next().unwrap_or_default();
    let mut parameters = Parameters::standard(tokens, sharing, names);
    match variant {
        "" => {}
        "one" => parameters.removal_names_max = 1,
        "best-fill" => parameters.blocks_per_worker = parameters.blocks_per_worker / 256 * 375,
        "one-best-fill" => {
            parameters.removal_names_max = 1;
            parameters.blocks_per_worker = parameters.blocks_per_worker / 256 * 375;
        }
        _ => return Err(unknown()),
    }
    if quick {
        parameters.blocks_per_worker /= 16;
    }
    let requests = match (sharing, tokens) {
        (Sharing::High, 128) => 60,
        (Sharing::Standard, 128) => 300,
        (Sharing::Low, 128) => 1500,
        (Sharing::High, 16) => 20,
        (Sharing::Standard, 16) => 80,
        (Sharing::Low, 16) => 400,
        (Sharing::High, _) => 20,
        _ => 60,
    };
    let windows = windows.unwrap_or(if quick { 8 } else { 24 });
    Ok(Cell { name: name.to_owned(), parameters, window_requests: requests, windows, busy_windows: windows / 2 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contender::Kind;
    use clap::ValueEnum;
    use kvatlas_benches::results::CELLS;

    #[test]
    fn every_churn_cell_of_the_table_has_parameters_and_known_rivals() {
        let shapes = ["holders", "root", "prompt", "after-churn", "exact"];
        for listed in CELLS.iter().filter(|listed| listed.command == "peers") {
            assert_eq!(of_name(listed.name, true, None).is_err(), shapes.contains(&listed.name), "{}", listed.name);
            assert!(listed.rivals.iter().all(|rival| Kind::from_str(rival, false).is_ok()), "{}", listed.name);
        }
        assert!(of_name("high-same-128-nothing", true, None).is_err());
        assert_eq!(of_name("low-random-16-one", false, None).unwrap().parameters.removal_names_max, 1);
    }
}
