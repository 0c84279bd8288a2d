//! Where a rank's state is fetched: one source for each dialect.

use super::pulse::{Asked, Pulse};
use super::queue::Sender;
use super::replay::open;
use crate::ingest::rank::RankInput;
use crate::ingest::snapshot::SnapshotDialect;
use crate::ingest::socket::Endpoint;
use crate::ingest::spec::IngestLimits;
use crate::wire::{FrameLimits, ReplayReply, parse_replay, snapshot_request};
use futures_util::future::BoxFuture;
use std::sync::Arc;
use tokio::sync::Semaphore;

/// What a source needs for one request.
pub(super) struct Request {
    pub(super) number: u64,
    pub(super) limits: IngestLimits,
    /// Where parts, the end or the failure go.
    pub(super) to: Sender,
    pub(super) pulse: Arc<Pulse>,
}

/// Fetches a rank's state: sends its parts as [`RankInput::SnapshotPart`], then [`RankInput::SnapshotEnd`], or
/// [`RankInput::SnapshotFailed`]. Whether that comes in time is the cursor's to judge: the future may be dropped at any point.
pub(super) trait SnapshotSource: Send + Sync {
    /// Makes one request.
    fn fetch(&self, request: Request) -> BoxFuture<'static, ()>;
}

/// The source of a dialect; `None` where the rank has no endpoint for it.
pub(super) fn source(dialect: Option<SnapshotDialect>, replay: Option<&Endpoint>) -> Option<Arc<dyn SnapshotSource>> {
    match dialect? {
        SnapshotDialect::VllmReplay => Some(Arc::new(VllmReplay { endpoint: replay?.clone() })),
    }
}

/// Fetches when there is room: so many states are held in memory at once, over all ranks.
pub(super) async fn fetch(source: Arc<dyn SnapshotSource>, room: Arc<Semaphore>, request: Request) {
    let Ok(_room) = room.acquire_owned().await else { return };
    source.fetch(request).await;
}

/// `snapshot` at the replay endpoint.
struct VllmReplay {
    endpoint: Endpoint,
}

impl SnapshotSource for VllmReplay {
    fn fetch(&self, request: Request) -> BoxFuture<'static, ()> {
        let endpoint = self.endpoint.clone();
        Box::pin(async move {
            let (number, to) = (request.number, request.to.clone());
            let end = match ask(endpoint, request).await {
                Some(()) => RankInput::SnapshotEnd { request: number },
                None => RankInput::SnapshotFailed { request: number },
            };
            to.tell(end).await;
        })
    }
}

async fn ask(endpoint: Endpoint, Request { number, limits, to, pulse }: Request) -> Option<()> {
    let mut asked = Asked { pulse: &pulse, replied: false };
    let mut connection = open(&endpoint, &limits).await?;
    connection.send(&snapshot_request()).await.ok()?;
    let frame_limits = FrameLimits { payload_bytes_max: limits.message_bytes_max, ..FrameLimits::default() };
    loop {
        let frames = match connection.receive().await {
            Ok(frames) => frames,
            Err(error) => {
                to.count(error.label(), 1).ok();
                return None;
            }
        };
        asked.replied = true;
        pulse.contact();
        if matches!(parse_replay(&frames, &frame_limits), Ok(ReplayReply::End)) {
            return Some(());
        }
        to.part(number, frames).await;
    }
}
