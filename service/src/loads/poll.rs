//! Polls of the engines' own metrics over HTTP: one task for each worker that has a place to poll, one poll of it at a time.

use super::engines::Scrape;
use super::exposition::Exposition;
use super::store::Loads;
use crate::fleet::{Fleet, FleetEvent, FleetView, WorkerEntry};
use bytes::Bytes;
use http::{Request, StatusCode, Uri, header};
use http_body_util::{BodyExt, Empty, LengthLimitError, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use rand::RngExt;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::{CancellationToken, DropGuard};

/// The text format that is read. Servers that know several send this one.
const FORMAT: &str = "text/plain;version=0.0.4";

/// Why a poll brought nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PollError {
    /// The connection could not be made, or ended before the answer did.
    #[error("no connection, or one that ended too early")]
    Connection,
    /// It took longer than `routing.load.poll_timeout_ms`.
    #[error("no whole answer in time")]
    Timeout,
    /// The answer leads elsewhere. It is not followed: a worker's load is asked for where the worker was registered.
    #[error("a redirect, which is not followed")]
    Redirect,
    /// The answer has another status than 200.
    #[error("status {0}")]
    Status(u16),
    /// The answer has more bytes than `routing.load.poll_bytes_max`.
    #[error("an answer of too many bytes")]
    TooLong,
    /// The answer is no text.
    #[error("an answer that is not UTF-8")]
    Encoding,
    /// The text has no load of an engine in it.
    #[error("a text without a load")]
    NoLoad,
}

impl PollError {
    /// The name in counters.
    pub const fn name(self) -> &'static str {
        match self {
            PollError::Connection => "poll_connection",
            PollError::Timeout => "poll_timeout",
            PollError::Redirect => "poll_redirect",
            PollError::Status(_) => "poll_status",
            PollError::TooLong => "poll_too_long",
            PollError::Encoding => "poll_encoding",
            PollError::NoLoad => "poll_no_load",
        }
    }
}

/// Polls every worker that has a place for it, until `closing` is cancelled; each from a random moment of its first interval on.
pub async fn poll_all(fleet: Arc<Fleet>, loads: Arc<Loads>, closing: CancellationToken) {
    let poller = Poller::new(loads);
    // Before the view is taken for the first time, so that no change falls between the two.
    let mut changes = fleet.watch();
    let mut polled = HashMap::new();
    loop {
        poller.follow_all(&fleet.view(), &mut polled);
        tokio::select! {
            open = registrations_changed(&mut changes) => if !open { return },
            () = closing.cancelled() => return,
        }
    }
}

/// Waits for a registration or the end of one; false: there will be none any more.
async fn registrations_changed(changes: &mut tokio::sync::broadcast::Receiver<FleetEvent>) -> bool {
    loop {
        match changes.recv().await {
            Ok(FleetEvent::Registered(_) | FleetEvent::Deregistered(_)) | Err(RecvError::Lagged(_)) => return true,
            Ok(FleetEvent::TrustChanged { .. } | FleetEvent::VetoChanged { .. }) => {}
            Err(RecvError::Closed) => return false,
        }
    }
}

/// What the polls of all workers share: a connection to each is kept and used again.
#[derive(Clone, Debug)]
struct Poller {
    client: Client<HttpConnector, Empty<Bytes>>,
    loads: Arc<Loads>,
}

impl Poller {
    fn new(loads: Arc<Loads>) -> Self {
        let client = Client::builder(TokioExecutor::new()).pool_max_idle_per_host(1).build_http();
        Self { client, loads }
    }

    /// Begins with the workers that are new and ends with those that are gone; takes time in proportion to the workers.
    fn follow_all(&self, view: &FleetView, polled: &mut HashMap<u64, DropGuard>) {
        polled.retain(|generation, _| view.workers().any(|w| w.generation == *generation));
        for worker in view.workers().filter(|w| w.registration.metrics.is_some()) {
            polled.entry(worker.generation).or_insert_with(|| {
                let stop = CancellationToken::new();
                let (poller, worker, stopped) = (self.clone(), worker.clone(), stop.clone());
                tokio::spawn(async move {
                    tokio::select! {
                        () = stopped.cancelled() => {}
                        () = poller.follow(worker) => {}
                    }
                });
                stop.drop_guard()
            });
        }
    }

    async fn follow(self, worker: Arc<WorkerEntry>) {
        let Some(source) = worker.registration.metrics.as_ref() else { return };
        let every = || source.every().unwrap_or(self.loads.settings().poll_interval);
        let started = Instant::now();
        let mut scrape = Scrape::default();
        let mut due = started + every().mul_f64(rand::rng().random());
        loop {
            sleep_until(due).await;
            let every = every();
            if worker.loads.pushed_within(every) {
                // What a rate would be made of is too old by the time that it is polled again.
                scrape = Scrape::default();
            } else if let Err(error) = self.poll(&worker, source.uri(), every, started, &mut scrape).await {
                worker.loads.poll_failed(error.name());
                tracing::debug!(worker = %worker.registration.worker.id, %error, "a load could not be polled");
            }
            // A poll that took longer than the time to the next is not followed by two at once.
            due = (due + every).max(Instant::now());
        }
    }

    /// Polls a worker once. A record that is refused for a field was counted by that.
    async fn poll(
        &self,
        worker: &WorkerEntry,
        uri: &Uri,
        every: Duration,
        started: Instant,
        scrape: &mut Scrape,
    ) -> Result<(), PollError> {
        let settings = self.loads.settings();
        let fetched = timeout(settings.poll_timeout, self.fetch(uri, settings.poll_bytes_max)).await;
        let text = fetched.unwrap_or(Err(PollError::Timeout))?;
        let text = Exposition::new(&text).map_err(|_| PollError::Encoding)?;
        let ranks = scrape.read(started.elapsed(), text).ok_or(PollError::NoLoad)?;
        let _ = self.loads.take(worker, ranks, Some(every));
        Ok(())
    }

    async fn fetch(&self, uri: &Uri, bytes_max: usize) -> Result<Bytes, PollError> {
        let request = Request::get(uri).header(header::ACCEPT, FORMAT).body(Empty::new());
        // The address was taken apart when the worker was registered.
        let request = request.map_err(|_| PollError::Connection)?;
        let response = self.client.request(request).await.map_err(|_| PollError::Connection)?;
        match response.status() {
            StatusCode::OK => {}
            status if status.is_redirection() => return Err(PollError::Redirect),
            status => return Err(PollError::Status(status.as_u16())),
        }
        let body = Limited::new(response.into_body(), bytes_max).collect().await;
        let too_long = |is| if is { PollError::TooLong } else { PollError::Connection };
        Ok(body.map_err(|error| too_long(error.is::<LengthLimitError>()))?.to_bytes())
    }
}
