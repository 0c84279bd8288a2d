//! `kvatlas demo`.

use kvatlas_service::demo::{self, DemoArgs};
use std::error::Error;

/// Runs the demo. An answer that is not the oracle's is an error, so that the exit status says so.
pub(crate) async fn run(args: DemoArgs) -> Result<(), Box<dyn Error>> {
    match demo::run(args).await? {
        true => Ok(()),
        false => Err("answers differ from the oracle's, or lookups failed".into()),
    }
}
