//! The volume of the embedded store, for the process that serves it: its metrics, its events, and its failure.

use std::sync::Arc;
use std::time::Duration;

use dalsegno_crds::names;
use dalsegno_store::sqlite::{Disk, DiskLevel, DiskStatus};
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::{Api, Client, Resource as _};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use crate::config::OperatorArgs;
use crate::controller::context::EVENT_TIMEOUT;
use crate::kube_client::with_timeout;

/// How often the level is compared.
const INTERVAL: Duration = Duration::from_secs(5);

/// The exit code of a process whose volume has failed: `EX_IOERR` of `sysexits.h`.
pub const EXIT_CODE: u8 = 74;

/// The volume has failed, and the process must end: see [`Disk::failure`].
#[derive(Debug, thiserror::Error)]
#[error(
    "the embedded store has failed: {0}. This process ends; the next one recovers everything that was acknowledged. If \
     this repeats, look at the volume and the log of its node"
)]
pub struct VolumeFailed(pub String);

/// Why the level of the volume changed, as the reason of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum VolumeReason {
    Filling,
    Full,
    HasSpace,
}

impl VolumeReason {
    fn text(self) -> &'static str {
        match self {
            Self::Filling => "VolumeFilling",
            Self::Full => "VolumeFull",
            Self::HasSpace => "VolumeHasSpace",
        }
    }

    fn type_(self) -> EventType {
        match self {
            Self::Filling | Self::Full => EventType::Warning,
            Self::HasSpace => EventType::Normal,
        }
    }
}

/// The event for a new level.
fn event(status: &DiskStatus) -> Event {
    let (reason, what) = match status.level {
        DiskLevel::Full => (
            VolumeReason::Full,
            "the store refuses turns, new calls and records until there is space; runs can end. Enlarge the volume",
        ),
        DiskLevel::Filling => (
            VolumeReason::Filling,
            "less than a fifth is free: enlarge the volume, or shorten spec.retention",
        ),
        DiskLevel::Ok => (VolumeReason::HasSpace, "there is enough space again"),
    };
    let mib = |bytes: u64| bytes >> 20;
    let (free, total) = (mib(status.free_bytes), mib(status.total_bytes));
    Event {
        type_: reason.type_(),
        reason: reason.text().into(),
        note: Some(format!("the volume of the embedded store has {free} MiB of {total} MiB free: {what}")),
        action: "Measure".into(),
        secondary: None,
    }
}

/// Publishes an event on this program's own pod whenever the level of its volume changes, until `stop`.
pub async fn publish_levels(disk: Arc<Disk>, client: Client, args: OperatorArgs, stop: CancellationToken) {
    let mut ticks = interval(INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut published = DiskLevel::Ok;
    while stop.run_until_cancelled(ticks.tick()).await.is_some() {
        let status = disk.status();
        if status.level == published {
            continue;
        }
        match publish(&status, &client, &args).await {
            Ok(()) => published = status.level,
            Err(error) => {
                tracing::warn!(%error, "an event on the volume could not be written; it is tried again")
            }
        }
    }
}

async fn publish(status: &DiskStatus, client: &Client, args: &OperatorArgs) -> kube::Result<()> {
    let client = with_timeout(client.clone(), EVENT_TIMEOUT);
    let pod = Api::<Pod>::namespaced(client.clone(), &args.namespace).get_metadata(&args.pod_name).await?;
    let reference = Pod { metadata: pod.metadata, ..Pod::default() }.object_ref(&());
    let reporter =
        Reporter { controller: names::FIELD_MANAGER.into(), instance: Some(args.pod_name.clone()) };
    Recorder::new(client, reporter).publish(&event(status), &reference).await
}

/// Registers the metrics of the volume as `store_…`, below the prefix of the registry.
pub fn register(disk: Arc<Disk>, registry: &mut Registry) {
    registry.sub_registry_with_prefix("store").register_collector(Box::new(VolumeMetrics(disk)));
}

/// Reads the last measurement at each scrape.
#[derive(Debug)]
struct VolumeMetrics(Arc<Disk>);

impl Collector for VolumeMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> std::fmt::Result {
        let DiskStatus { level, total_bytes, free_bytes, wal_bytes, has_reserve, interrupted_reads } =
            self.0.status();
        let gauges = [
            ("volume_bytes", "Size of the volume of the embedded store", total_bytes),
            ("volume_free_bytes", "Free bytes of the volume", free_bytes),
            ("wal_bytes", "Bytes of the write-ahead log", wal_bytes),
            ("has_reserve", "Whether the reserve exists (1)", has_reserve.into()),
            (
                "is_full",
                "Whether the store refuses turns, because its volume is almost full (1)",
                (level == DiskLevel::Full).into(),
            ),
        ];
        for (name, help, value) in gauges {
            let gauge = ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX));
            gauge.encode(encoder.encode_descriptor(name, help, None, gauge.metric_type())?)?;
        }
        let counter = ConstCounter::new(interrupted_reads);
        let help = "Long reads that were ended, because they kept the write-ahead log from shrinking";
        counter.encode(encoder.encode_descriptor("interrupted_reads", help, None, counter.metric_type())?)
    }
}

#[cfg(test)]
mod tests;
