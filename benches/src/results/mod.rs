//! Results of the comparison: what is kept of a run, the gates it is held to, and the table that is made of it.
//!
//! Everything shown is computed from files of [`RunFile`], so the table in `benches/README.md` is never typed by hand. Nothing
//! here needs the published indexes.

mod cells;
mod gates;
mod ladder;
mod markdown;
mod measured;

pub use cells::{CELLS, Listed};
pub use gates::{Row, print, rows};
pub use markdown::{BEGIN, END, into_readme, markdown};
pub use measured::{Measured, Outcome, Sum};

use crate::provenance::Provenance;
use ladder::LadderFile;
use serde::{Deserialize, Serialize};
use std::io;
use std::path::Path;

/// The file of one cell: what was measured, and where it comes from.
#[derive(Debug, Serialize, Deserialize)]
pub struct RunFile {
    /// The cell.
    pub cell: String,
    /// Where it comes from.
    pub provenance: Provenance,
    /// How long the cell took, in seconds.
    pub took_s: u64,
    /// What was measured, of a churn cell.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub outcome: Option<Outcome>,
    /// Finished rows, of the other cells.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub rows: Vec<Row>,
}

impl RunFile {
    /// The rows of the table.
    pub fn rows(&self) -> Vec<Row> {
        self.outcome.as_ref().map_or_else(|| self.rows.clone(), rows)
    }

    /// Writes the file into a folder, under the cell's name.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn save(&self, folder: &Path) -> io::Result<()> {
        std::fs::create_dir_all(folder)?;
        let text = serde_json::to_string(self)?;
        std::fs::write(folder.join(format!("{}.json", self.cell)), text + "\n")
    }

    /// Reads the files of the listed cells that a folder has, in the order of [`CELLS`].
    ///
    /// # Errors
    ///
    /// A file cannot be read, or is none of these.
    pub fn load_all(folder: &Path) -> io::Result<Vec<Self>> {
        let path_of = |cell: &Listed| folder.join(format!("{}.json", cell.name));
        CELLS.iter().filter(|cell| path_of(cell).is_file()).map(|cell| Self::load(cell, &path_of(cell))).collect()
    }

    fn load(cell: &Listed, path: &Path) -> io::Result<Self> {
        let text = std::fs::read(path)?;
        if cell.command != "ladder" {
            return Ok(serde_json::from_slice(&text)?);
        }
        let ladder: LadderFile = serde_json::from_slice(&text)?;
        let (rows, took_s) = (ladder.rows(cell.name), ladder.took_s());
        Ok(Self { cell: cell.name.to_owned(), provenance: ladder.provenance, took_s, outcome: None, rows })
    }
}
