//! Which desks there are, by model and routing group, and by number.

use super::cell::DeskCell;
use super::order::RouteError;
use crate::routing::{Desk, DeskCounters, RoutingSettings};
use arc_swap::ArcSwap;
use rand::RngExt;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Low bits of a reservation's number that are its desk's.
const DESK_BITS: u32 = 20;
/// Desks at once.
const DESKS_MAX: usize = 1 << DESK_BITS;
/// Where the numbers of a desk's bookings begin: drawn below this, so that those of an earlier run or desk mean nothing; above it a
/// million a second is enough for two months more.
const FIRST_BOOKING_BELOW: u64 = 1 << 42;

/// A reservation's number as callers see it.
pub(super) fn reservation(desk: u32, booking: u64) -> u64 {
    booking << DESK_BITS | u64::from(desk)
}

/// The desk and the booking of a reservation.
fn split(reservation: u64) -> (usize, u64) {
    ((reservation & (DESKS_MAX as u64 - 1)) as usize, reservation >> DESK_BITS)
}

/// The desks.
#[derive(Debug, Default)]
pub(super) struct Registry {
    there: ArcSwap<There>,
    /// Held for moments by whoever changes `there`; inside, the counts of desks that are gone.
    gone: Mutex<DeskCounters>,
}

#[derive(Clone, Debug, Default)]
struct There {
    /// By model, then by routing group, so that a lookup borrows both names.
    by_name: HashMap<String, HashMap<String, Arc<DeskCell>>>,
    by_number: Vec<Option<Arc<DeskCell>>>,
}

impl Registry {
    /// The desk of a model and group, if there is one. Takes no lock.
    pub fn find(&self, model: &str, group: &str) -> Option<Arc<DeskCell>> {
        self.there.load().by_name.get(model)?.get(group).cloned()
    }

    /// The desk that a reservation was made at, and its booking's number there. Takes no lock.
    pub fn of_reservation(&self, reservation: u64) -> Option<(Arc<DeskCell>, u64)> {
        let (number, booking) = split(reservation);
        Some((self.there.load().by_number.get(number)?.clone()?, booking))
    }

    /// The desk of a model and group; a new one where there is none.
    pub fn find_or_open(
        &self,
        model: &str,
        group: &str,
        settings: &Arc<RoutingSettings>,
        block_size: u32,
    ) -> Result<Arc<DeskCell>, RouteError> {
        if let Some(cell) = self.find(model, group) {
            return Ok(cell);
        }
        let _changing = self.changing();
        if let Some(cell) = self.find(model, group) {
            return Ok(cell);
        }
        let mut there = There::clone(&self.there.load());
        let free = there.by_number.iter().position(Option::is_none).unwrap_or(there.by_number.len());
        if free >= DESKS_MAX {
            return Err(RouteError::DesksFull { limit: DESKS_MAX });
        }
        let mut rng = rand::rng();
        let first_booking = rng.random_range(1..FIRST_BOOKING_BELOW);
        let desk = Desk::numbered_from(first_booking, settings.clone(), block_size, rng.random());
        let cell = Arc::new(DeskCell::new(model, group, free as u32, desk));
        if free == there.by_number.len() {
            there.by_number.push(None);
        }
        there.by_number[free] = Some(cell.clone());
        there.by_name.entry(model.to_owned()).or_default().insert(group.to_owned(), cell.clone());
        self.there.store(Arc::new(there));
        Ok(cell)
    }

    /// Takes a desk out, whose group is gone, and keeps its counts.
    pub fn close(&self, cell: &Arc<DeskCell>) {
        let mut gone = self.changing();
        let mut there = There::clone(&self.there.load());
        let Some(place) = there.by_number.get_mut(cell.number as usize) else { return };
        if place.as_ref().is_none_or(|is| !Arc::ptr_eq(is, cell)) {
            return;
        }
        *place = None;
        if let Some(groups) = there.by_name.get_mut(&*cell.model) {
            groups.remove(&*cell.routing_group);
            if groups.is_empty() {
                there.by_name.remove(&*cell.model);
            }
        }
        self.there.store(Arc::new(there));
        gone.add(cell.lock().desk.counters());
    }

    /// Every desk, by number.
    pub fn all(&self) -> Vec<Arc<DeskCell>> {
        self.there.load().by_number.iter().flatten().cloned().collect()
    }

    /// What all desks counted, those that are gone too, and how many there are. No desk goes meanwhile, so no count does.
    pub fn counters(&self) -> (DeskCounters, usize) {
        let gone = self.changing();
        let mut sum = gone.clone();
        let all = self.all();
        all.iter().for_each(|cell| sum.add(cell.lock().desk.counters()));
        (sum, all.len())
    }

    fn changing(&self) -> MutexGuard<'_, DeskCounters> {
        self.gone.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reservation_names_its_desk_and_numbers_are_used_again() {
        let registry = Registry::default();
        let settings = Arc::new(RoutingSettings::default());
        let open = |model: &str, group: &str| registry.find_or_open(model, group, &settings, 16).unwrap();
        let (a, b, a_blue) = (open("a", ""), open("b", ""), open("a", "blue"));
        assert_eq!((a.number, b.number, a_blue.number), (0, 1, 2));
        assert!(Arc::ptr_eq(&open("a", ""), &a), "one desk for each name");
        let number = reservation(b.number, 77);
        let (cell, booking) = registry.of_reservation(number).unwrap();
        assert!(Arc::ptr_eq(&cell, &b) && booking == 77);
        registry.close(&b);
        registry.close(&b);
        assert!(registry.find("b", "").is_none() && registry.of_reservation(number).is_none());
        assert_eq!((open("c", "").number, registry.all().len()), (1, 3));
        let (_, booking) = registry.of_reservation(number).unwrap();
        assert!(!registry.find("c", "").unwrap().lock().desk.was_made(booking), "another desk's numbers");
        assert!(registry.of_reservation(u64::MAX).is_none());
    }
}
