//! Gives a reserved address range to a memory node: mbind(2), the one call for which there is no safe wrapper.
//!
//! The call itself rather than hwloc or libnuma: both end in it, both are C libraries that a build may lack, and the system's
//! own error number is what an operator needs to see. A page is placed when it is first touched, so the call costs no memory.
#![cfg_attr(target_os = "linux", expect(unsafe_code, reason = "one system call on a range that a mapping owns"))]

use crate::place::NodePolicy;
use memmap2::MmapMut;
use std::io;

/// Nodes that a mask names; the kernel's own limit (1,024) is not above it.
#[cfg(target_os = "linux")]
const NODES_MAX: usize = 1024;
#[cfg(target_os = "linux")]
const WORD_BITS: usize = libc::c_ulong::BITS as usize;

/// Asks for every page of the mapping to come from the node from now on. An error is the system's: no such node (or none that
/// this process may use), no such call, or a sandbox that forbids it. Nothing has changed then.
#[cfg(target_os = "linux")]
pub(crate) fn bind(map: &MmapMut, node: u32, policy: NodePolicy) -> io::Result<()> {
    let node = node as usize;
    if node >= NODES_MAX {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    let mut mask = [0 as libc::c_ulong; NODES_MAX / WORD_BITS];
    mask[node / WORD_BITS] = 1 << (node % WORD_BITS);
    let mode = match policy {
        NodePolicy::Prefer => libc::MPOL_PREFERRED,
        NodePolicy::Bind => libc::MPOL_BIND,
    };
    // The kernel counts one bit less than it is told.
    let bits = (NODES_MAX + 1) as libc::c_ulong;
    let (start, bytes, flags) = (map.as_ptr(), map.len(), 0 as libc::c_uint);
    // SAFETY: the range is exactly one mapping, alive through the borrow, and the call changes where its future pages come
    // from and no byte of it; the mask outlives the call and has `NODES_MAX` bits, as many as the kernel is told to read.
    let answer = unsafe { libc::syscall(libc::SYS_mbind, start, bytes, mode, mask.as_ptr(), bits, flags) };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// There is no such call.
#[cfg(not(target_os = "linux"))]
pub(crate) fn bind(_map: &MmapMut, _node: u32, _policy: NodePolicy) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}
