//! The thread beside an index that makes huge pages of its memory, as the service runs one by
//! default.

use kvatlas_index::{HugePages, Index};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;

/// The thread; it ends with this.
#[derive(Debug)]
pub struct Tending {
    end: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Tending {
    /// Starts it for an index. What the index asked for decides whether there is anything to do.
    pub fn of(index: &Arc<Index>) -> std::io::Result<Self> {
        let (end, ended) = sync_channel(0);
        let index = index.clone();
        let tend = move || {
            while ended.recv_timeout(HugePages::TENDED_EVERY) == Err(RecvTimeoutError::Timeout) {
                index.tend_pages(HugePages::COLLAPSES_MAX);
            }
        };
        let thread = std::thread::Builder::new().name("pages".to_owned()).spawn(tend)?;
        Ok(Self { end: Some(end), thread: Some(thread) })
    }
}

impl Drop for Tending {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            // Nothing is lost with a thread that panicked, and the panic was told.
            let _ = thread.join();
        }
    }
}
