//! The real binary: served from one process, asked from another, ended by a signal.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod common;
mod served;

use common::*;
use kvatlas_service::grpc::proto::event_service_client::EventServiceClient;
use kvatlas_service::grpc::proto::{self};
use served::{KVATLAS, serve, signal};
use std::io::{Read, Write};
use std::process::Command;

fn client(endpoint: &str, args: &[&str]) -> (bool, String, String) {
    let output = Command::new(KVATLAS).args(args).args(["--endpoint", endpoint]).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.success(), text(output.stdout), text(output.stderr))
}

fn json(endpoint: &str, args: &[&str]) -> serde_json::Value {
    let (ok, out, err) = client(endpoint, &[args, &["--json"]].concat());
    assert!(ok, "{err}");
    serde_json::from_str(&out).unwrap()
}

#[tokio::test]
async fn lookups_from_another_process_and_a_clean_end_by_sigterm() {
    let mut served = serve(&["--worker", "id=w,model=tiny,block_size=4"]);
    let mut events = EventServiceClient::connect(format!("http://{}", served.grpc)).await.unwrap();
    let batches = vec![batch("w", 0, vec![stored(None, 1, tokens(3))])];
    let ack = events.apply(tokio_stream::iter(batches)).await.unwrap().into_inner().message().await.unwrap().unwrap();
    assert_eq!(ack.status(), proto::apply_ack::Status::Applied);
    drop(events);

    let ids = tokens(4).iter().map(u32::to_string).collect::<Vec<_>>().join(",");
    let prompt = ["--model", "tiny", "--tokens", ids.as_str()];
    let found = json(&served.grpc, &[&["lookup"], &prompt[..]].concat());
    assert_eq!(found["holders"][0]["worker"], "w");
    assert_eq!((&found["holders"][0]["matched_blocks"], &found["query_blocks"]), (&3.into(), &4.into()));
    let why = json(&served.grpc, &[&["explain"], &prompt[..]].concat());
    assert_eq!(why["ranks"][0]["stop"], "CONTENT_UNKNOWN");
    let workers = json(&served.grpc, &["workers"]);
    assert_eq!(
        (&workers["workers"][0]["static"], &workers["workers"][0]["ranks"][0]["trust"]),
        (&true.into(), &"EXACT".into())
    );
    let status = json(&served.grpc, &["status"]);
    assert_eq!((&status["ready"], &status["blocks_held"], &status["lookups"]), (&true.into(), &3.into(), &1.into()));
    for (command, word) in [("lookup", "EXACT"), ("explain", "CONTENT_UNKNOWN")] {
        let (ok, out, err) = client(&served.grpc, &[&[command], &prompt[..]].concat());
        assert!(ok && out.contains(word), "{command}: {out} {err}");
    }
    let (ok, _, err) = client(&served.grpc, &["lookup", "--model", "other", "--tokens", "1"]);
    assert!(!ok && err.contains("unknown model"), "{err}");
    assert_eq!(get(served.admin.parse().unwrap(), "/livez").await.0, 200);

    signal(&served.child, "TERM");
    assert_eq!(served.child.wait().unwrap().code(), Some(0));
    let (ok, _, err) = client(&served.grpc, &["status"]);
    assert!(!ok && err.contains("cannot reach"), "{err}");
}

/// Somebody else's port: it takes connections and says nothing, or says something else.
#[test]
fn an_endpoint_that_is_no_service_is_said_in_time() {
    let foreign = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = foreign.local_addr().unwrap().to_string();
    for command in [&["events", "w"][..], &["status"], &["workers"]] {
        let (ok, _, err) = client(&endpoint, &[command, &["--timeout", "0.2"]].concat());
        assert!(!ok && err.contains("answer"), "{command:?}: {err}");
    }
    std::thread::spawn(move || {
        for connection in foreign.incoming() {
            connection.unwrap().write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").ok();
        }
    });
    let (ok, _, err) = client(&endpoint, &["status"]);
    assert!(!ok && err.contains("no answer that can be understood"), "{err}");
    let (ok, _, err) = client(&endpoint, &["status", "--timeout", "nan"]);
    assert!(!ok && err.contains("--timeout"), "{err}");
    let (ok, _, err) = client("", &["status"]);
    assert!(!ok && err.contains("--endpoint"), "{err}");
}

#[test]
fn a_republished_rank_says_where() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("kvatlas.toml");
    std::fs::write(&file, "[[relay.wire]]\nworker = \"w\"\n").unwrap();
    let served = serve(&["--config", file.to_str().unwrap(), "--worker", "id=w,model=tiny,block_size=4"]);
    let workers = json(&served.grpc, &["workers"]);
    let rank = &workers["workers"][0]["ranks"][0];
    for key in ["wire_events_endpoint", "wire_replay_endpoint"] {
        assert!(rank[key].as_str().unwrap().starts_with("tcp://127.0.0.1:"), "{rank}");
    }
}

#[test]
fn an_interrupt_ends_it_as_well() {
    let mut served = serve(&[]);
    signal(&served.child, "INT");
    assert_eq!(served.child.wait().unwrap().code(), Some(0));
}

#[test]
fn configuration_is_printed_and_mistakes_are_refused() {
    let run = |args: &[&str]| Command::new(KVATLAS).arg("serve").args(args).output().unwrap();
    let printed = run(&["--print-config", "--lanes", "3"]);
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), &printed.stdout).unwrap();
    let again = run(&["--print-config", "--config", file.path().to_str().unwrap()]);
    assert!(again.status.success());
    assert_eq!(String::from_utf8(again.stdout).unwrap(), String::from_utf8(printed.stdout).unwrap());
    for (args, word) in [
        (&["--listen", "nowhere"][..], "grpc.listen"),
        (&["--worker", "id=a,color=red"], "color"),
        (&["--config", "/nonexistent.toml"], "nonexistent"),
    ] {
        let refused = run(args);
        let mut err = String::new();
        refused.stderr.as_slice().read_to_string(&mut err).unwrap();
        assert!(!refused.status.success() && err.contains(word), "{err}");
    }
}
