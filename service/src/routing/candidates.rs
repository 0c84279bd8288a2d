//! Who may be chosen at all: one pass over the status words, which every policy's decision begins with.
//!
//! A ready worker that is vetoed is out while another is not; then one that is overloaded, while another is not. Where nobody is left,
//! the fewest requests in flight decide, since to choose somebody is better than to choose nobody.

use super::columns::{Columns, Slot, Status, nanos};
use rand::{Rng, RngExt};
use std::time::Duration;

/// What narrowed the candidates of a decision.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Gates {
    /// Workers in question.
    pub workers: u32,
    /// Of these, not ready.
    pub not_ready: u32,
    /// Of these, vetoed and nothing worse.
    pub vetoed: u32,
    /// Of these, overloaded and nothing worse.
    pub overloaded: u32,
    /// Every ready worker is vetoed: those of them with the fewest requests are candidates all the same.
    pub all_vetoed: bool,
    /// Every worker that is left is overloaded: one of those with the fewest requests is the only candidate.
    pub all_overloaded: bool,
}

/// Why there is no candidate.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Nobody {
    /// No worker in question is ready.
    NoneReady,
    /// Every worker is overloaded, and requests are shed then.
    AllOverloaded,
}

/// Writes the candidates into `out`, in the order of `only`, or by rising slot. Never empty where it succeeds.
///
/// An overload flag counts as long as its record may be believed: dark is not full. Slots of `only` where nobody is are passed over.
/// `shed`: to refuse where everybody is overloaded. The generator is asked only then, if it is not. Allocates only where `out` has
/// to grow.
pub fn candidates(
    columns: &Columns,
    now: Duration,
    only: Option<&[Slot]>,
    shed: bool,
    rng: &mut dyn Rng,
    out: &mut Vec<Slot>,
) -> Result<Gates, Nobody> {
    let mut pass = Pass { columns, now: nanos(now), gates: Gates::default(), best: Class::Out, out };
    pass.out.clear();
    match only {
        Some(only) => only.iter().for_each(|slot| pass.look(*slot)),
        None => (0..columns.len() as Slot).for_each(|slot| pass.look(slot)),
    }
    let Pass { mut gates, best, now, out, .. } = pass;
    match best {
        Class::Free => return Ok(gates),
        Class::Overloaded => gates.all_overloaded = true,
        Class::Vetoed => {
            gates.all_vetoed = true;
            keep_fewest(columns, out);
            let over = |slot: &Slot| is_over(columns, now, *slot);
            gates.all_overloaded = out.iter().all(over);
            if !gates.all_overloaded {
                out.retain(|slot| !over(slot));
            }
        }
        Class::Out => return Err(Nobody::NoneReady),
    }
    if gates.all_overloaded {
        if shed {
            return Err(Nobody::AllOverloaded);
        }
        keep_fewest(columns, out);
        keep_one(out, rng);
    }
    Ok(gates)
}

/// How good a candidate a worker is, best first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Class {
    Free,
    Overloaded,
    Vetoed,
    Out,
}

/// The pass over the workers: keeps those of the best class so far.
struct Pass<'a> {
    columns: &'a Columns,
    now: u64,
    gates: Gates,
    best: Class,
    out: &'a mut Vec<Slot>,
}

impl Pass<'_> {
    #[inline]
    fn look(&mut self, slot: Slot) {
        let Some(status) = self.columns.status.get(slot as usize).copied() else { return };
        if status.has(Status::ABSENT) {
            return;
        }
        self.gates.workers += 1;
        let class = if status == Status::default() { Class::Free } else { self.worse(slot, status) };
        if class > self.best || class == Class::Out {
            return;
        }
        if class < self.best {
            self.best = class;
            self.out.clear();
        }
        self.out.push(slot);
    }

    /// The class of a worker of which something is said. The worst decides.
    fn worse(&mut self, slot: Slot, status: Status) -> Class {
        let (class, count) = if status.has(Status::NOT_READY) {
            (Class::Out, &mut self.gates.not_ready)
        } else if status.has(Status::VETOED) {
            (Class::Vetoed, &mut self.gates.vetoed)
        } else if is_over(self.columns, self.now, slot) {
            (Class::Overloaded, &mut self.gates.overloaded)
        } else {
            return Class::Free;
        };
        *count += 1;
        class
    }
}

fn is_over(columns: &Columns, now: u64, slot: Slot) -> bool {
    let at = slot as usize;
    columns.status[at].has(Status::OVERLOADED) && columns.fresh_until[at] >= now
}

fn keep_fewest(columns: &Columns, slots: &mut Vec<Slot>) {
    let fewest = slots.iter().map(|slot| columns.in_flight[*slot as usize]).min();
    slots.retain(|slot| Some(columns.in_flight[*slot as usize]) == fewest);
}

fn keep_one(slots: &mut Vec<Slot>, rng: &mut dyn Rng) {
    if slots.len() > 1 {
        let kept = slots[rng.random_range(0..slots.len())];
        slots.clear();
        slots.push(kept);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routing::testing::{FRESH_FOR, Fleet, rank, seeded};
    use Status as S;

    fn of(fleet: &Fleet, only: Option<&[Slot]>, shed: bool) -> Result<(Vec<Slot>, Gates), Nobody> {
        let mut out = vec![9];
        candidates(&fleet.columns, fleet.now, only, shed, &mut seeded(30), &mut out).map(|gates| (out, gates))
    }

    /// Idle workers with fresh records and these bits.
    fn fleet(bits: &[u8]) -> Fleet {
        let mut fleet = Fleet::of(&vec![rank(0, 0.0); bits.len()]);
        bits.iter().zip(0..).for_each(|(bits, slot)| fleet.put(slot, *bits, true));
        fleet
    }

    #[test]
    fn everybody_in_order() {
        let gates = Gates { workers: 3, ..Gates::default() };
        assert_eq!(of(&fleet(&[0, 0, 0]), None, false), Ok((vec![0, 1, 2], gates)));
    }

    #[test]
    fn the_worst_that_is_said_of_a_worker_decides_and_is_counted_once() {
        let all = S::NOT_READY | S::VETOED | S::OVERLOADED;
        let fleet = fleet(&[all, 0, S::VETOED | S::OVERLOADED, S::OVERLOADED, 0, S::ABSENT]);
        let gates = Gates { workers: 5, not_ready: 1, vetoed: 1, overloaded: 1, ..Gates::default() };
        assert_eq!(of(&fleet, None, true), Ok((vec![1, 4], gates)));
    }

    #[test]
    fn only_those_that_were_named_and_are_there() {
        let (slots, gates) = of(&fleet(&[0, S::VETOED, 0, S::ABSENT]), Some(&[1, 2, 3, 77]), false).unwrap();
        assert_eq!((slots, gates.workers, gates.vetoed), (vec![2], 2, 1));
        assert_eq!(of(&fleet(&[0]), Some(&[]), false), Err(Nobody::NoneReady));
    }

    #[test]
    fn all_vetoed_leaves_those_with_the_fewest_requests() {
        let mut fleet = fleet(&[S::VETOED, S::NOT_READY, S::VETOED, S::VETOED]);
        fleet.in_flight(&[3, 0, 5, 3]);
        let (slots, gates) = of(&fleet, None, true).unwrap();
        assert_eq!((slots, gates.all_vetoed, gates.all_overloaded), (vec![0, 3], true, false));
        fleet.put(0, S::OVERLOADED, true);
        let (slots, gates) = of(&fleet, None, true).unwrap();
        assert_eq!((slots, gates.all_vetoed, gates.all_overloaded), (vec![3], true, false));
        fleet.put(3, S::OVERLOADED, true);
        assert_eq!(of(&fleet, None, true), Err(Nobody::AllOverloaded));
        let (slots, gates) = of(&fleet, None, false).unwrap();
        assert_eq!((slots.len(), gates.all_vetoed, gates.all_overloaded), (1, true, true));
    }

    #[test]
    fn a_vetoed_worker_is_no_way_out_of_an_overload() {
        let (slots, gates) = of(&fleet(&[S::VETOED, S::OVERLOADED]), None, false).unwrap();
        assert_eq!((slots, gates.all_vetoed, gates.all_overloaded), (vec![1], false, true));
    }

    #[test]
    fn all_overloaded_draws_one_of_those_with_the_fewest_requests() {
        let mut fleet = fleet(&[S::OVERLOADED; 4]);
        fleet.in_flight(&[4, 2, 2, 2]);
        let (mut rng, mut out, mut counts) = (seeded(31), Vec::new(), [0; 4]);
        for _ in 0..3000 {
            assert!(candidates(&fleet.columns, fleet.now, None, false, &mut rng, &mut out).is_ok());
            assert_eq!(out.len(), 1);
            counts[out[0] as usize] += 1;
        }
        assert_eq!(counts[0], 0);
        assert!(counts[1..].iter().all(|count| (900..=1100).contains(count)), "{counts:?}");
    }

    #[test]
    fn none_ready() {
        assert_eq!(of(&fleet(&[S::NOT_READY, S::ABSENT]), None, false), Err(Nobody::NoneReady));
        assert_eq!(of(&fleet(&[]), None, false), Err(Nobody::NoneReady));
    }

    #[test]
    fn a_flag_ends_with_the_trust_in_its_record() {
        let mut fleet = fleet(&[S::OVERLOADED, 0]);
        fleet.now += FRESH_FOR;
        assert_eq!(of(&fleet, None, false).map(|(slots, _)| slots), Ok(vec![1]));
        fleet.now += Duration::from_nanos(1);
        assert_eq!(of(&fleet, None, false).map(|(slots, gates)| (slots, gates.overloaded)), Ok((vec![0, 1], 0)));
    }
}
