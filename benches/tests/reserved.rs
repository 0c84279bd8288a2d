//! Resident pages of ranges that the system joins in its list. A process of its own: other threads reserve ranges, too.

use kvatlas_benches::memory::Reserved;

#[test]
fn joined_neighbours_are_counted_apart() -> std::io::Result<()> {
    const BYTES: usize = 4 << 20;
    let reserve = || memmap2::MmapMut::map_anon(BYTES);
    let before = Reserved::now();
    let mut first = reserve()?;
    let between = Reserved::now();
    let mut second = reserve()?;
    let after = Reserved::now();
    let (of_first, of_second) = (between.since(&before), after.since(&between));
    // 3 pages here, 5 there: neighbours in the address space, as a rule, and one entry of the list then.
    (0..3).for_each(|page| first[page * 4096] = 1);
    (0..5).for_each(|page| second[page * 4096] = 1);
    assert_eq!((of_first.resident(), of_second.resident()), (3 * 4096, 5 * 4096));
    Ok(())
}
