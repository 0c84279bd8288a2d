//! Every way in which a call can fail, and the one place that chooses its status code.

use crate::desks::RouteError;
use crate::fleet::FleetError;
use crate::lanes::LaneError;
use crate::lease::{Unavailable, WatchEnd};
use crate::lookup::LookupError;
use crate::relay::{End, SubscribeError};
use crate::routing::Behind;
use kvatlas_index::IndexError;
use tonic::metadata::MetadataValue;
use tonic::{Code, Status};

/// Milliseconds after which a refused lookup may be tried again (`grpc-retry-pushback-ms`).
const RETRY_PUSHBACK_MS: &str = "20";

/// The same of a request that found every worker overloaded: loads are pushed about as often.
const RETRY_OVERLOADED_MS: &str = "1000";

/// Bytes of a message; percent-encoded it is up to three times as long, and clients take 16 KiB of headers.
const MESSAGE_BYTES_MAX: usize = 1024;

/// Why a call failed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ServiceError {
    /// A field is missing or malformed.
    #[error("{field}: {reason}")]
    Invalid {
        /// The field.
        field: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// A list is longer than its limit.
    #[error("{field}: {len} entries, at most {limit} (limit {setting})")]
    TooLong {
        /// The field.
        field: &'static str,
        /// Its length.
        len: usize,
        /// The setting.
        setting: &'static str,
        /// Its value.
        limit: usize,
    },
    /// As many lookups as allowed are being worked on.
    #[error("{limit} lookups are being worked on (limit limits.lookups_in_flight_max): try again")]
    Busy {
        /// The limit.
        limit: usize,
    },
    /// The service is about to end.
    #[error("the service is draining: go to another replica")]
    Draining,
    /// The rank's payloads are not kept.
    #[error("{rank} is not republished (relay.wire): its events are not streamed in other words than our own")]
    NotRepublished {
        /// The rank.
        rank: String,
    },
    /// The lookup was refused.
    #[error(transparent)]
    Lookup(#[from] LookupError),
    /// The fleet refused.
    #[error(transparent)]
    Fleet(#[from] FleetError),
    /// A subscription did not begin.
    #[error(transparent)]
    Subscribe(#[from] SubscribeError),
    /// A subscription ended.
    #[error(transparent)]
    Ended(#[from] End),
    /// The lease's store does not answer.
    #[error("{0}: do not expand")]
    Lease(#[from] Unavailable),
    /// A watch of leases did not begin, or ended.
    #[error(transparent)]
    LeaseWatch(#[from] WatchEnd),
    /// A table of a partition is full.
    #[error("{limit} {what} in the partition (limit {setting})")]
    LeaseFull {
        /// Of what.
        what: &'static str,
        /// The setting.
        setting: &'static str,
        /// The limit.
        limit: usize,
    },
    /// As many copies as allowed are on their way.
    #[error("{limit} copies are on their way (limit limits.copies_in_flight_max): try again")]
    CopiesFull {
        /// The limit.
        limit: usize,
    },
    /// No bookings are exchanged.
    #[error("this replica has no peers (replicas.peers): it tells its bookings to nobody")]
    NoPeers,
    /// A listener to bookings is too far behind.
    #[error("{0} (limit routing.bookings.history_max): begin again")]
    BookingsBehind(#[from] Behind),
    /// A request was not routed.
    #[error(transparent)]
    Route(#[from] RouteError),
    /// A text is longer than its limit.
    #[error("{field}: {len} bytes, at most {limit} (limit {setting})")]
    TextTooLong {
        /// The field.
        field: &'static str,
        /// Its length.
        len: usize,
        /// The setting.
        setting: &'static str,
        /// Its value.
        limit: usize,
    },
    /// A copy's reader took too long for a chunk.
    #[error("a chunk was not read within {limit_ms} ms (limit relay.snapshot_stall_max_ms): go on with resume")]
    CopyStalled {
        /// The limit.
        limit_ms: u64,
    },
}

impl ServiceError {
    /// A malformed field.
    pub fn invalid(field: &'static str, reason: impl Into<String>) -> Self {
        Self::Invalid { field, reason: reason.into() }
    }

    /// What went wrong, in at most `MESSAGE_BYTES_MAX` bytes and a mark: a message travels in a header, and callers' own
    /// names are part of it.
    pub fn message(&self) -> String {
        let mut message = self.to_string();
        if message.len() > MESSAGE_BYTES_MAX {
            message.truncate(message.floor_char_boundary(MESSAGE_BYTES_MAX));
            message.push_str(" ... (cut)");
        }
        message
    }

    /// The status code of each way to fail.
    pub fn code(&self) -> Code {
        match self {
            Self::Invalid { .. } | Self::TooLong { .. } | Self::TextTooLong { .. } => Code::InvalidArgument,
            Self::Busy { .. } | Self::CopiesFull { .. } => Code::ResourceExhausted,
            Self::CopyStalled { .. } => Code::DeadlineExceeded,
            Self::Draining | Self::Lease(_) | Self::LeaseWatch(WatchEnd::Unavailable(_)) => Code::Unavailable,
            Self::LeaseFull { .. } | Self::LeaseWatch(WatchEnd::Full(_)) => Code::ResourceExhausted,
            Self::LeaseWatch(WatchEnd::Gone { .. }) => Code::OutOfRange,
            Self::NotRepublished { .. } | Self::NoPeers => Code::FailedPrecondition,
            Self::BookingsBehind(_) => Code::DataLoss,
            Self::Lookup(error) => lookup_code(error),
            Self::Fleet(error) => fleet_code(error),
            Self::Route(error) => route_code(error),
            Self::Subscribe(error) => subscribe_code(error),
            Self::Ended(End::Removed) => Code::NotFound,
            Self::Ended(End::OtherLife | End::Slow) => Code::DataLoss,
        }
    }
}

fn lookup_code(error: &LookupError) -> Code {
    match error {
        LookupError::TooLong { .. } | LookupError::Invalid { .. } => Code::InvalidArgument,
        LookupError::Fleet(error) => fleet_code(error),
    }
}

fn route_code(error: &RouteError) -> Code {
    match error {
        RouteError::Lookup(error) => lookup_code(error),
        RouteError::Candidates { .. } => Code::InvalidArgument,
        RouteError::NoneReady => Code::Unavailable,
        RouteError::AllOverloaded | RouteError::AllCapped | RouteError::DesksFull { .. } => Code::ResourceExhausted,
        RouteError::UnknownReservation { .. } => Code::NotFound,
    }
}

fn fleet_code(error: &FleetError) -> Code {
    match error {
        FleetError::UnknownModel { .. }
        | FleetError::UnknownGroup { .. }
        | FleetError::UnknownWorker { .. }
        | FleetError::UnknownRank { .. } => Code::NotFound,
        FleetError::WorkerExists { .. } => Code::AlreadyExists,
        FleetError::StaleGeneration { .. }
        | FleetError::BlockSizeMismatch { .. }
        | FleetError::HashModeMismatch { .. } => Code::FailedPrecondition,
        FleetError::Invalid { .. } => Code::InvalidArgument,
        FleetError::Full { .. } => Code::ResourceExhausted,
        FleetError::Lane(LaneError::Fenced { .. } | LaneError::Changed) => Code::Aborted,
        FleetError::Lane(LaneError::Stopped) => Code::Unavailable,
        FleetError::Lane(LaneError::Index(IndexError::RanksFull { .. })) => Code::ResourceExhausted,
        FleetError::Lane(LaneError::Index(_)) => Code::Internal,
    }
}

fn subscribe_code(error: &SubscribeError) -> Code {
    match error {
        SubscribeError::Full(_) => Code::ResourceExhausted,
        SubscribeError::Gone { .. } | SubscribeError::Ahead { .. } => Code::OutOfRange,
        SubscribeError::OtherLife => Code::DataLoss,
        // A rank whose lane does not know it any more was removed in this very moment.
        SubscribeError::Removed | SubscribeError::Lane(LaneError::Fenced { .. }) => Code::NotFound,
        SubscribeError::Lane(LaneError::Stopped) => Code::Unavailable,
        SubscribeError::Lane(LaneError::Changed) => Code::Aborted,
        SubscribeError::Lane(LaneError::Index(_)) => Code::Internal,
    }
}

impl ServiceError {
    /// Milliseconds after which the same may be tried again; `None` where another try is not worth it.
    fn retry_after_ms(&self) -> Option<&'static str> {
        match self {
            Self::Busy { .. } => Some(RETRY_PUSHBACK_MS),
            Self::Route(RouteError::AllOverloaded | RouteError::AllCapped) => Some(RETRY_OVERLOADED_MS),
            _ => None,
        }
    }
}

impl From<ServiceError> for Status {
    fn from(error: ServiceError) -> Self {
        let mut status = Status::new(error.code(), error.message());
        if let Some(after) = error.retry_after_ms() {
            // The one is read by clients of gRPC themselves, the other by routers that answer over HTTP.
            for name in ["grpc-retry-pushback-ms", "retry-after-ms"] {
                status.metadata_mut().insert(name, MetadataValue::from_static(after));
            }
        }
        status
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::WatchesFull;
    use crate::relay::RelayFull;

    #[test]
    fn every_way_to_fail_has_its_status() {
        let text = String::new;
        let fleet = |error| ServiceError::Fleet(error);
        let table = [
            (ServiceError::invalid("model", "required"), Code::InvalidArgument),
            (ServiceError::TooLong { field: "f", len: 2, setting: "s", limit: 1 }, Code::InvalidArgument),
            (ServiceError::Busy { limit: 1 }, Code::ResourceExhausted),
            (ServiceError::Draining, Code::Unavailable),
            (ServiceError::CopiesFull { limit: 1 }, Code::ResourceExhausted),
            (Unavailable(text()).into(), Code::Unavailable),
            (WatchEnd::from(Unavailable(text())).into(), Code::Unavailable),
            (WatchEnd::from(WatchesFull { limit: 1 }).into(), Code::ResourceExhausted),
            (WatchEnd::Gone { asked: 1 }.into(), Code::OutOfRange),
            (ServiceError::LeaseFull { what: "w", setting: "s", limit: 1 }, Code::ResourceExhausted),
            (ServiceError::CopyStalled { limit_ms: 1 }, Code::DeadlineExceeded),
            (ServiceError::NotRepublished { rank: text() }, Code::FailedPrecondition),
            (LookupError::TooLong { field: "f", len: 2, setting: "s", limit: 1 }.into(), Code::InvalidArgument),
            (LookupError::Invalid { field: "f", reason: text() }.into(), Code::InvalidArgument),
            (LookupError::Fleet(FleetError::UnknownModel { model: text() }).into(), Code::NotFound),
            (fleet(FleetError::UnknownModel { model: text() }), Code::NotFound),
            (fleet(FleetError::UnknownGroup { model: text(), group: text() }), Code::NotFound),
            (fleet(FleetError::UnknownWorker { worker: text() }), Code::NotFound),
            (fleet(FleetError::UnknownRank { worker: text(), rank: 1 }), Code::NotFound),
            (fleet(FleetError::WorkerExists { worker: text() }), Code::AlreadyExists),
            (fleet(FleetError::StaleGeneration { worker: text(), asked: 1, current: 2 }), Code::FailedPrecondition),
            (
                fleet(FleetError::BlockSizeMismatch { model: text(), group: text(), registered: 1, asked: 2 }),
                Code::FailedPrecondition,
            ),
            (fleet(FleetError::HashModeMismatch { model: text(), group: text() }), Code::FailedPrecondition),
            (fleet(FleetError::Invalid { field: "f", reason: text() }), Code::InvalidArgument),
            (fleet(FleetError::Full { what: "w", setting: "s", limit: 1 }), Code::ResourceExhausted),
            (fleet(FleetError::Lane(LaneError::Fenced { generation: 1 })), Code::Aborted),
            (fleet(FleetError::Lane(LaneError::Changed)), Code::Aborted),
            (fleet(FleetError::Lane(LaneError::Stopped)), Code::Unavailable),
            (fleet(FleetError::Lane(LaneError::Index(IndexError::RanksFull { limit: 1 }))), Code::ResourceExhausted),
            (fleet(FleetError::Lane(LaneError::Index(IndexError::UnknownRank { slot: 1 }))), Code::Internal),
            (SubscribeError::Full(RelayFull { limit: 1 }).into(), Code::ResourceExhausted),
            (SubscribeError::Gone { asked: 1, oldest: Some(2) }.into(), Code::OutOfRange),
            (SubscribeError::Ahead { asked: 9, next: 2 }.into(), Code::OutOfRange),
            (SubscribeError::OtherLife.into(), Code::DataLoss),
            (SubscribeError::Removed.into(), Code::NotFound),
            (SubscribeError::Lane(LaneError::Fenced { generation: 1 }).into(), Code::NotFound),
            (SubscribeError::Lane(LaneError::Stopped).into(), Code::Unavailable),
            (SubscribeError::Lane(LaneError::Changed).into(), Code::Aborted),
            (SubscribeError::Lane(LaneError::Index(IndexError::UnknownRank { slot: 1 })).into(), Code::Internal),
            (End::Removed.into(), Code::NotFound),
            (End::OtherLife.into(), Code::DataLoss),
            (End::Slow.into(), Code::DataLoss),
            (ServiceError::TextTooLong { field: "f", len: 2, setting: "s", limit: 1 }, Code::InvalidArgument),
            (RouteError::Lookup(FleetError::UnknownModel { model: text() }.into()).into(), Code::NotFound),
            (RouteError::Lookup(LookupError::Invalid { field: "f", reason: text() }).into(), Code::InvalidArgument),
            (RouteError::Candidates { len: 2, limit: 1 }.into(), Code::InvalidArgument),
            (RouteError::NoneReady.into(), Code::Unavailable),
            (RouteError::AllOverloaded.into(), Code::ResourceExhausted),
            (RouteError::AllCapped.into(), Code::ResourceExhausted),
            (RouteError::DesksFull { limit: 1 }.into(), Code::ResourceExhausted),
            (RouteError::UnknownReservation { reservation: 1 }.into(), Code::NotFound),
        ];
        for (error, code) in table {
            let full = [RouteError::AllOverloaded.into(), RouteError::AllCapped.into()];
            let busy = matches!(error, ServiceError::Busy { .. }) || full.contains(&error);
            let message = error.to_string();
            let status = Status::from(error);
            assert_eq!((status.code(), status.message()), (code, message.as_str()));
            assert_eq!(status.metadata().contains_key("grpc-retry-pushback-ms"), busy);
            assert_eq!(status.metadata().contains_key("retry-after-ms"), busy);
        }
    }
}
