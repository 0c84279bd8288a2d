//! Seeding leases of two replicas on a real etcd, which is killed, stopped and filled with nonsense meanwhile.
//!
//! Needs `etcd` (Debian's package etcd-server), or what `KVATLAS_ETCD` names.
#![cfg(feature = "etcd")]
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod common;
mod seeding;

use common::*;
use kvatlas_service::grpc::proto;
use kvatlas_service::lease::{EtcdSettings, EtcdStore, Fences, LeaseSettings, LeaseStore, Partition, Record, Swapped};
use proto::lease_refused::Reason;
use seeding::*;
use std::io::ErrorKind;
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;
use tonic::Code;

/// A cluster of one member with files of its own. It does not outlive its test.
struct Cluster {
    child: Child,
    folder: TempDir,
    port: u16,
}

impl Cluster {
    /// `None`, and words to be seen, where there is no such program. CI installs it and does not go on without.
    async fn start() -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        // etcd names its own address to others, so it has to know it: a port that was free a moment ago.
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        match spawn(&folder, port) {
            Ok(child) => {
                let cluster = Self { child, folder, port };
                cluster.answers().await;
                Some(cluster)
            }
            Err(error) if error.kind() == ErrorKind::NotFound && std::env::var_os("CI").is_none() => {
                eprintln!("\n!!! SKIPPED: etcd is not installed (apt-get install etcd-server)\n");
                None
            }
            Err(error) => panic!("etcd: {error}"),
        }
    }

    fn store(&self) -> EtcdStore {
        let endpoints = vec![format!("http://127.0.0.1:{}", self.port)];
        let response_max = Duration::from_secs(2);
        EtcdStore::new(EtcdSettings { endpoints, response_max, ..EtcdSettings::default() }).unwrap()
    }

    async fn answers(&self) {
        let store = self.store();
        in_time(async {
            let mut period = tokio::time::interval(Duration::from_millis(10));
            while store.read(&place("probe")).await.is_err() {
                period.tick().await;
            }
        })
        .await;
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// A new process over the same files.
    async fn come_back(&mut self) {
        self.child = spawn(&self.folder, self.port).unwrap();
        self.answers().await;
    }

    fn signal(&self, name: &str) {
        let status = Command::new("kill").args([name, &self.child.id().to_string()]).status().unwrap();
        assert!(status.success());
    }

    /// A replica on this cluster, with short deadlines.
    async fn replica(&self, workers: &[&str]) -> Seeded {
        let mut raw = quick();
        raw.lease.etcd_endpoints = vec![format!("http://127.0.0.1:{}", self.port)];
        raw.lease.etcd_response_max_ms = 2_000;
        Seeded::start(raw, workers).await
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

fn spawn(folder: &TempDir, port: u16) -> std::io::Result<Child> {
    let program = std::env::var("KVATLAS_ETCD").unwrap_or_else(|_| "etcd".into());
    let clients = format!("http://127.0.0.1:{port}");
    Command::new(program)
        .args(["--data-dir", "data", "--listen-peer-urls", "http://127.0.0.1:0"])
        .args(["--listen-client-urls", &clients, "--advertise-client-urls", &clients])
        .current_dir(folder.path())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
}

fn place(model: &str) -> Partition {
    Partition { model: model.into(), namespace: String::new(), pool: String::new() }
}

#[tokio::test]
async fn of_many_swaps_of_one_version_one_is_taken() {
    let Some(mut cluster) = Cluster::start().await else { return };
    let (a, b, at) = (cluster.store(), cluster.store(), place("m"));
    let read = a.read(&at).await.unwrap();
    assert_eq!((&read.record, read.version), (&None, 0));
    let record = Record::new(read.now, &LeaseSettings::default());
    let swaps = (0..32).map(|i| [&a, &b][i % 2].swap(&at, 0, record.clone()));
    let swapped = futures_util::future::join_all(swaps).await;
    assert_eq!(swapped.iter().filter(|swapped| **swapped == Ok(Swapped::Yes)).count(), 1, "{swapped:?}");
    let again = b.read(&at).await.unwrap();
    assert_eq!(again.record, Some(record.clone()));
    assert_eq!(b.read(&place("mm")).await.unwrap().record, None, "another partition is another key");
    cluster.kill();
    assert!(a.swap(&at, again.version, record.clone()).await.is_err() && !a.status().connected);
    cluster.come_back().await;
    assert_eq!(a.read(&at).await.unwrap().record, Some(record), "it outlives its server, and is found again");
    assert!(a.status().connected);
}

#[tokio::test]
async fn sl1_two_replicas_grant_one_lease() {
    let Some(cluster) = Cluster::start().await else { return };
    let mut one = cluster.replica(&["owner", "peer"]).await;
    let mut two = cluster.replica(&["owner", "peer"]).await;
    // The quiet time is over for both.
    let key = one.acquire_when_free("owner", "first").await;
    one.abort(key).await;
    let (a, b) = tokio::join!(one.settled("peer", "a"), two.settled("peer", "b"));
    let refused: Vec<_> = [&a, &b].into_iter().filter_map(|asked| asked.as_ref().err()).collect();
    assert_eq!(refused, [&Reason::Held], "{a:?} {b:?}");
    let (winner, loser, key) = match (a, b) {
        (Ok(key), _) => (&mut one, &mut two, key),
        (_, Ok(key)) => (&mut two, &mut one, key),
        (Err(_), Err(_)) => unreachable!("one was granted"),
    };
    let mut watch = loser.watch().await;
    assert!(!winner.renew(key, true).await.lost);
    winner.serve("peer").await;
    assert_eq!(winner.commit(key, usage()).await.result(), proto::commit_response::Result::Committed);
    assert_eq!(watch.until_owners(1).await, ["peer"], "the other replica's routers see the owner");
}

/// No expansion while the store is down; what was committed is there afterwards.
#[tokio::test]
async fn sl6_the_cluster_goes_down() {
    let Some(mut cluster) = Cluster::start().await else { return };
    let mut fleet = cluster.replica(&["owner", "peer"]).await;
    let key = fleet.dispatch("owner", &mut Fences::new(1), "a").await;
    fleet.serve("owner").await;
    assert_eq!(fleet.commit(key, usage()).await.result(), proto::commit_response::Result::Committed);
    let request = fleet.request("peer", "b").await;
    let mut watch = fleet.watch().await;
    assert_eq!(watch.owners().await, ["owner"]);
    // Stopped, it neither answers nor refuses.
    cluster.signal("-STOP");
    let status = in_time(fleet.leases.acquire(request.clone())).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    assert!(status.message().contains("do not expand"), "{status}");
    assert_eq!(watch.end().await.code(), Code::Unavailable, "watchers know that they are not told any more");
    cluster.signal("-CONT");
    cluster.kill();
    let status = in_time(fleet.leases.acquire(request)).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    let status = fleet.clients.index.get_status(proto::GetStatusRequest::default()).await.unwrap().into_inner();
    let leases = status.leases.unwrap();
    assert!(!leases.connected && !leases.detail.is_empty(), "{leases:?}");
    cluster.come_back().await;
    let mut watch = in_time(fleet.watch_when_there()).await;
    assert_eq!(watch.owners().await, ["owner"]);
    let again = fleet.acquire_when_free("peer", "c").await;
    assert!(again.fence > key.fence);
}
