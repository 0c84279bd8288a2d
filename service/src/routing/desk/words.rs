//! The words between a desk and whoever runs it.

use super::bookings::Booking;
use crate::routing::{BookingChange, Gates, LoadReport, Malformed, Nobody, Pick, PolicyName, Request, Slot};
use std::sync::Arc;
use std::time::Duration;

/// Something that happened, other than that somebody asked.
#[derive(Clone, Debug)]
pub enum Input {
    /// A worker is there. One of this name that was there before is gone, with its bookings.
    WorkerAdded {
        /// Its id.
        worker: Arc<str>,
        /// Its ranks by number, rising.
        ranks: Arc<[u32]>,
        /// Number of its registration.
        generation: u64,
    },
    /// A worker is gone: its bookings are released.
    WorkerGone {
        /// Its id.
        worker: Arc<str>,
    },
    /// Whether a worker takes requests.
    Ready {
        /// Its id.
        worker: Arc<str>,
        /// Whether it does.
        ready: bool,
    },
    /// Whether a worker is vetoed.
    Vetoed {
        /// Its id.
        worker: Arc<str>,
        /// Whether it is.
        vetoed: bool,
    },
    /// Whether what the index says of a worker is exact on every rank.
    Certified {
        /// Its id.
        worker: Arc<str>,
        /// Whether it is.
        certified: bool,
    },
    /// Blocks that the index holds of a worker, over ranks and tiers.
    Blocks {
        /// Its id.
        worker: Arc<str>,
        /// How many.
        blocks: u64,
    },
    /// A worker's load.
    Load {
        /// Its id.
        worker: Arc<str>,
        /// As it came.
        report: LoadReport,
    },
    /// The first token of a request came, or another sign that its worker is at work on it.
    FirstToken {
        /// Its booking.
        booking: u64,
    },
    /// A request ended.
    Completed {
        /// Its booking.
        booking: u64,
        /// How, and what it took.
        ending: Ending,
    },
    /// Whoever held a booking went away without a word.
    Abandoned {
        /// The booking.
        booking: u64,
    },
    /// What another replica's bookings became.
    Foreign {
        /// The booking's number here: none that this desk gives.
        number: u64,
        /// What happened.
        change: BookingChange,
    },
    /// How many routers send to these workers without telling.
    Routers {
        /// So many, this one counted.
        routers: u32,
    },
    /// Time passed.
    Tick,
}

/// How a request ended.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Outcome {
    /// As it should.
    Ok,
    /// Its worker failed, or answered with an error.
    Failed,
    /// Its client gave up.
    Cancelled,
    /// It was never sent.
    NotSent,
}

/// The end of a request, as whoever sent it tells.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ending {
    /// How it ended.
    pub outcome: Outcome,
    /// Whether the engine gave a reason for the end that means a whole answer.
    pub finished: bool,
    /// Tokens of the prompt, as the engine counted.
    pub prompt_tokens: Option<u64>,
    /// Of these, found cached.
    pub cached_tokens: Option<u64>,
    /// Tokens of the answer.
    pub output_tokens: Option<u64>,
}

impl Ending {
    /// An end of which nothing more is known.
    pub const fn bare(outcome: Outcome) -> Self {
        Self { outcome, finished: false, prompt_tokens: None, cached_tokens: None, output_tokens: None }
    }

    /// Whether this proves that the engine computed the whole prompt: a clean end with a reason for it, at least one token, and
    /// usage that names the prompt that was routed, give or take a block.
    pub(super) fn is_proof(&self, booking: &Booking, block_size: u32) -> bool {
        let same = |counted: u64| booking.prompt_tokens.is_some_and(|is| is.abs_diff(counted) <= block_size.into());
        self.outcome == Outcome::Ok
            && self.finished
            && self.output_tokens.is_some_and(|tokens| tokens > 0)
            && self.prompt_tokens.is_some_and(same)
    }
}

/// What has to be told to others.
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    /// A load was refused, for this field; nothing is known of the worker's load until the next.
    LoadRefused {
        /// The worker's id.
        worker: Arc<str>,
        /// The field.
        field: Malformed,
    },
    /// A worker is at work on what it was given.
    Progress {
        /// The worker's id.
        worker: Arc<str>,
        /// The predicted prefill that this shows to be done; zero where it was shown before.
        prefill_done: Duration,
    },
    /// A booking was released.
    Released {
        /// The worker's id.
        worker: Arc<str>,
        /// The booking.
        booking: u64,
        /// By what.
        by: ReleasedBy,
        /// The predicted prefill of it that was never seen done; `None`: it was not watched.
        prefill_left: Option<Duration>,
    },
}

/// What released a booking.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum ReleasedBy {
    /// The request ended.
    Completion,
    /// The stream on which it was made ended.
    StreamEnd,
    /// Nobody spoke of it for too long.
    Ttl,
    /// Its worker is gone.
    WorkerGone,
}

impl ReleasedBy {
    /// Every way.
    pub const ALL: [ReleasedBy; 4] =
        [ReleasedBy::Completion, ReleasedBy::StreamEnd, ReleasedBy::Ttl, ReleasedBy::WorkerGone];

    /// The name in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            ReleasedBy::Completion => "completion",
            ReleasedBy::StreamEnd => "stream_end",
            ReleasedBy::Ttl => "ttl",
            ReleasedBy::WorkerGone => "worker_gone",
        }
    }
}

/// A question: where should this request go?
#[derive(Clone, Copy, Debug)]
pub struct Ask<'a> {
    /// The request. Its booking number is the desk's to give.
    pub request: Request<'a>,
    /// The policy; `None`: the configured one.
    pub policy: Option<PolicyName>,
    /// Only these workers, by rising slot; `None`: all.
    pub only: Option<&'a [Slot]>,
    /// Of some of these workers only these ranks, sorted. A worker that does not stand here may be given any rank.
    pub only_ranks: &'a [(Slot, u32)],
    /// By slot, the rank that holds most of the prompt; [`NO_RANK`], or nothing at all, where none does.
    pub deepest_ranks: &'a [u32],
    /// Whether the index holds anything of the model: if not, what was routed before is all that can be said of a prompt.
    pub events: bool,
    /// Whether to book.
    pub book: bool,
    /// Open bookings of other desks that count against the same limit.
    pub others_open: usize,
    /// Most output tokens, where the request says.
    pub max_output_tokens: Option<u32>,
}

impl<'a> Ask<'a> {
    /// Where a request should go of which nothing special is said: it is booked.
    pub const fn of(request: Request<'a>) -> Self {
        Self {
            request,
            policy: None,
            only: None,
            only_ranks: &[],
            deepest_ranks: &[],
            events: true,
            book: true,
            others_open: 0,
            max_output_tokens: None,
        }
    }
}

/// In [`Ask::deepest_ranks`]: no rank of the worker holds anything.
pub const NO_RANK: u32 = u32::MAX;

/// Where a request goes.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// The policy's choice.
    pub pick: Pick,
    /// The worker's id.
    pub worker: Arc<str>,
    /// Number of the worker's registration.
    pub generation: u64,
    /// Data-parallel rank.
    pub rank: u32,
    /// The booking. 0: nothing was booked.
    pub booking: u64,
    /// Whether nothing was booked although it was asked for: the book is full.
    pub book_full: bool,
    /// Leading blocks that the worker was credited with.
    pub matched_blocks: u32,
    /// Tokens that are expected to be found cached; `None` where nothing could be said of the prompt.
    pub predicted_tokens: Option<u64>,
    /// Whether the credit is a guess from requests routed before: there are no events to tell.
    pub approximate: bool,
    /// Whether part of the credit is for requests just dispatched, whose events have not come.
    pub predicted: bool,
    /// The prefill that it is expected to take, for whoever watches whether its worker does anything; `None`: it is not watched.
    pub watched_prefill: Option<Duration>,
    /// The policy that decided.
    pub policy: PolicyName,
    /// What narrowed the candidates.
    pub gates: Gates,
}

/// Why nobody was chosen.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Refusal {
    /// No worker in question is ready.
    NoneReady,
    /// Every worker is overloaded, and shedding is on.
    AllOverloaded,
    /// The policy's own cap admits nobody.
    AllCapped,
}

impl From<Nobody> for Refusal {
    fn from(nobody: Nobody) -> Self {
        match nobody {
            Nobody::NoneReady => Refusal::NoneReady,
            Nobody::AllOverloaded => Refusal::AllOverloaded,
        }
    }
}

impl Refusal {
    /// Every reason.
    pub const ALL: [Refusal; 3] = [Refusal::NoneReady, Refusal::AllOverloaded, Refusal::AllCapped];

    /// The name in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Refusal::NoneReady => "none_ready",
            Refusal::AllOverloaded => "all_overloaded",
            Refusal::AllCapped => "all_capped",
        }
    }
}
