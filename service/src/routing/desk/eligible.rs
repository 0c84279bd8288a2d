//! Who may be chosen: one pass over the status words.

use super::words::{Gates, Refusal};
use crate::routing::columns::{Columns, Slot, Status};

/// Writes the candidates into `out`, by rising slot. Allocates only where `out` has to grow.
pub(super) fn eligible(
    columns: &Columns,
    only: Option<&[Slot]>,
    shed: bool,
    out: &mut Vec<Slot>,
) -> Result<Gates, Refusal> {
    let mut gates = Gates::default();
    let mut best = u8::MAX;
    out.clear();
    let mut look = |slot: Slot| {
        let Some(status) = columns.status.get(slot as usize).filter(|status| !status.has(Status::ABSENT)) else {
            return;
        };
        gates.workers += 1;
        // The worst reason decides; a smaller class is a better one.
        let class = if status.has(Status::NOT_READY) {
            gates.not_ready += 1;
            return;
        } else if status.has(Status::VETOED) {
            gates.vetoed += 1;
            2
        } else if status.has(Status::OVERLOADED) {
            gates.overloaded += 1;
            1
        } else {
            0
        };
        if class < best {
            best = class;
            out.clear();
        }
        if class == best {
            out.push(slot);
        }
    };
    match only {
        Some(only) => only.iter().copied().for_each(&mut look),
        None => (0..columns.len() as Slot).for_each(&mut look),
    }
    match best {
        0 => return Ok(gates),
        1 if shed => return Err(Refusal::AllOverloaded),
        1 => gates.all_overloaded = true,
        2 => gates.all_vetoed = true,
        _ => return Err(Refusal::NoneReady),
    }
    let least = out.iter().map(|slot| columns.in_flight[*slot as usize]).min();
    out.retain(|slot| Some(columns.in_flight[*slot as usize]) == least);
    Ok(gates)
}
