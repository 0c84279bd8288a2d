//! Records on a cluster of etcd, for replicas that have to agree: one key for each partition, written by transactions on the revision
//! of its latest write, and read linearizably. Time is the clock of the replica that steps, so `lease.skew_max` has to hold between
//! replicas. Leases of etcd are not used: they count whole seconds, and end when the cluster likes.

mod proto;

use super::record::{Partition, Record};
use super::settings::EtcdSettings;
use super::store::{LeaseStore, StoreStatus, Stored, Swapped, Unavailable};
use proto::compare::{CompareResult, CompareTarget, TargetUnion};
use proto::kv_client::KvClient;
use proto::request_op::Request;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::time::timeout;
use tonic::transport::{Channel, Endpoint};
use tonic::{Response, Status, async_trait};

/// Version of the keys and of what is under them.
const FORMAT: &str = "1";

/// A cluster. Any task may ask it; connections are made, and made anew, by and by.
pub struct EtcdStore {
    client: KvClient<Channel>,
    settings: EtcdSettings,
    /// Why it did not answer last; `None`: it did, or was not asked.
    trouble: Mutex<Option<String>>,
}

impl EtcdStore {
    /// A store on this cluster. Connects to nothing yet; call it on a runtime.
    pub fn new(settings: EtcdSettings) -> Result<Self, String> {
        let endpoints = settings.endpoints.iter().map(|endpoint| {
            let parsed = Endpoint::from_shared(endpoint.clone()).map_err(|error| format!("{endpoint}: {error}"))?;
            Ok(parsed.connect_timeout(settings.response_max))
        });
        let endpoints = endpoints.collect::<Result<Vec<_>, String>>()?;
        let channel = match <[Endpoint; 1]>::try_from(endpoints) {
            Ok([only]) => only.connect_lazy(),
            Err(several) => Channel::balance_list(several.into_iter()),
        };
        Ok(Self { client: KvClient::new(channel), settings, trouble: Mutex::default() })
    }

    fn key(&self, partition: &Partition) -> Vec<u8> {
        let Partition { model, namespace, pool } = partition;
        // Lengths first: no two partitions have one key.
        let (m, n) = (model.len(), namespace.len());
        format!("{}/{FORMAT}/lease/{m}:{n}:{model}{namespace}{pool}", self.settings.prefix).into_bytes()
    }

    /// One question, in time.
    async fn ask<T>(&self, asked: impl Future<Output = Result<Response<T>, Status>>) -> Result<T, Unavailable> {
        let answer = match timeout(self.settings.response_max, asked).await {
            Ok(Ok(answer)) => Ok(answer.into_inner()),
            Ok(Err(status)) => Err(format!("etcd: {}: {}", status.code(), status.message())),
            Err(_) => Err("etcd: no answer within lease.etcd_response_max_ms".to_owned()),
        };
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = answer.as_ref().err().cloned();
        answer.map_err(Unavailable)
    }
}

#[async_trait]
impl LeaseStore for EtcdStore {
    async fn read(&self, partition: &Partition) -> Result<Stored, Unavailable> {
        let request = proto::RangeRequest { key: self.key(partition) };
        let answer = self.ask(self.client.clone().range(request)).await?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        let Some(found) = answer.kvs.into_iter().next() else {
            return Ok(Stored { record: None, version: 0, now });
        };
        // What is not ours to read is not ours to replace.
        let record = serde_json::from_slice(&found.value).map_err(|error| Unavailable(format!("a record: {error}")))?;
        Ok(Stored { record: Some(record), version: u64::try_from(found.mod_revision).unwrap_or(0), now })
    }

    async fn swap(&self, partition: &Partition, version: u64, record: Record) -> Result<Swapped, Unavailable> {
        let key = self.key(partition);
        let value = serde_json::to_vec(&record).map_err(|error| Unavailable(format!("a record: {error}")))?;
        let unmodified = proto::Compare {
            result: CompareResult::Equal.into(),
            target: CompareTarget::Mod.into(),
            key: key.clone(),
            target_union: Some(TargetUnion::ModRevision(i64::try_from(version).unwrap_or(i64::MAX))),
        };
        let put = proto::RequestOp { request: Some(Request::RequestPut(proto::PutRequest { key, value })) };
        let request = proto::TxnRequest { compare: vec![unmodified], success: vec![put] };
        let answer = self.ask(self.client.clone().txn(request)).await?;
        Ok(if answer.succeeded { Swapped::Yes } else { Swapped::No })
    }

    fn status(&self) -> StoreStatus {
        let detail = self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone();
        StoreStatus { name: self.settings.endpoints.join(","), connected: detail.is_none(), detail }
    }
}
