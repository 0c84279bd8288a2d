//! What every client command shares: the endpoint, the channel, names of enum values, tables.

use clap::Args;
use comfy_table::presets::UTF8_BORDERS_ONLY;
use comfy_table::{Cell, CellAlignment, Table};
use kvatlas_service::grpc::proto;
use std::error::Error;
use std::time::Duration;
use tonic::Status;
use tonic::transport::{Channel, Endpoint};

/// Bytes of an answer that a client takes: a list of 4,096 workers is a few megabytes.
pub(crate) const ANSWER_BYTES_MAX: usize = 256 << 20;

/// How often a refused connection is tried again, and the pause between: a second in all.
const REFUSALS_MAX: u32 = 10;
const REFUSAL_PAUSE: Duration = Duration::from_millis(100);

#[derive(Args)]
pub(crate) struct ClientArgs {
    /// The service.
    #[arg(long, env = "KVATLAS_ENDPOINT", default_value = "http://127.0.0.1:50071")]
    endpoint: String,
    /// Seconds that connecting and, except for streams, a call may take.
    #[arg(long, default_value_t = 10.0)]
    timeout: f64,
    /// JSON instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
}

impl ClientArgs {
    pub(crate) async fn channel(&self) -> Result<Channel, Box<dyn Error>> {
        self.connect(true).await
    }

    /// A channel whose calls may take as long as they like.
    pub(crate) async fn stream_channel(&self) -> Result<Channel, Box<dyn Error>> {
        self.connect(false).await
    }

    /// The answer of a call that opens a stream: it has to come in time, the stream may take as long as it likes.
    pub(crate) async fn opened<T>(&self, call: impl Future<Output = Result<T, Status>>) -> Result<T, Box<dyn Error>> {
        match tokio::time::timeout(self.timeout()?, call).await {
            Ok(answer) => answer.map_err(refused),
            Err(_) => Err(format!("{} does not answer", self.endpoint).into()),
        }
    }

    fn timeout(&self) -> Result<Duration, String> {
        Duration::try_from_secs_f64(self.timeout).map_err(|error| format!("--timeout {}: {error}", self.timeout))
    }

    async fn connect(&self, limited: bool) -> Result<Channel, Box<dyn Error>> {
        let timeout = self.timeout()?;
        let address =
            if self.endpoint.contains("://") { self.endpoint.clone() } else { format!("http://{}", self.endpoint) };
        let endpoint =
            Endpoint::from_shared(address).map_err(|error| format!("--endpoint {:?}: {error}", self.endpoint))?;
        let endpoint = endpoint.connect_timeout(timeout);
        let endpoint = if limited { endpoint.timeout(timeout) } else { endpoint };
        let mut refusals = 0;
        loop {
            match endpoint.connect().await {
                Ok(channel) => return Ok(channel),
                // A service that was started a moment ago is not listening yet.
                Err(_) if refusals < REFUSALS_MAX => refusals += 1,
                Err(error) => return Err(format!("cannot reach {}: {}", self.endpoint, root_cause(&error)).into()),
            }
            tokio::time::sleep(REFUSAL_PAUSE).await;
        }
    }
}

fn root_cause(error: &dyn Error) -> String {
    let mut cause = error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    cause.to_string()
}

/// A status as one line. One with a cause was made on this side: the service said nothing.
pub(crate) fn refused(status: Status) -> Box<dyn Error> {
    if let Some(cause) = status.source() {
        return format!("no answer that can be understood from the service: {}", root_cause(cause)).into();
    }
    format!("{:?}: {}", status.code(), status.message()).into()
}

pub(crate) fn table(head: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(UTF8_BORDERS_ONLY).set_header(head);
    table
}

/// A figure, aligned to the right.
pub(crate) fn figure(value: impl ToString) -> Cell {
    Cell::new(value.to_string()).set_alignment(CellAlignment::Right)
}

/// `EXACT` out of `TRUST_EXACT`.
pub(crate) fn trust_name(trust: i32) -> &'static str {
    proto::Trust::try_from(trust).map_or("UNKNOWN", |t| t.as_str_name().trim_start_matches("TRUST_"))
}

/// `device` out of `TIER_DEVICE`.
pub(crate) fn tier_name(tier: i32) -> &'static str {
    match proto::Tier::try_from(tier) {
        Ok(proto::Tier::Device) => "device",
        Ok(proto::Tier::Host) => "host",
        Ok(proto::Tier::Disk) => "disk",
        Ok(proto::Tier::External) => "external",
        Ok(proto::Tier::Unspecified) | Err(_) => "unknown",
    }
}

/// `1.5 s ago`, or `-`.
pub(crate) fn age(ms: Option<u64>) -> String {
    ms.map_or_else(|| "-".to_owned(), |ms| format!("{:.1} s ago", ms as f64 / 1000.0))
}
