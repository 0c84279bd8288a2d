//! What the service passes on of the events it got: so far the state of a rank as operations.

pub mod snapshot;
