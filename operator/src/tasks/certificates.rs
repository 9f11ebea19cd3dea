//! Keeps the gateway's certificate and its CA: observes, plans, and writes what is due. The plan is
//! [`dalsegno_core::certificates`].

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use dalsegno_core::certificates::{
    CertificatePlan, CertificateSource, CertificateStep, ObservedCertificates, PodTrust, RotationState,
    dns_names,
};
use dalsegno_crds::names;
use futures::StreamExt as _;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::api::{Patch, PatchParams};
use kube::runtime::events::{Event, EventType};
use kube::{Api, Resource as _};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::certificates::CA;
use crate::certificates::issue::{self, by_id};
use crate::certificates::objects::{
    AuthoritySecret, BundleMap, CertificateSecret, Objects, ServedNotes, ServedSecret, bundle_of,
};
use crate::config::{TlsArgs, TlsMode};
use crate::controller::context::Context;

/// Longest pause between two looks. A person's request for another CA, and a pod without TLS that has ended, are seen then.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// Pause while a CA is replaced, and after a write that failed.
const SHORT_PAUSE: Duration = Duration::from_secs(1);

/// Pods that are given a new bundle at once, and in one round.
const PATCHES_AT_ONCE: usize = 16;
const PATCHES_IN_A_ROUND: usize = 512;

/// Keeps the certificate until cancelled.
pub struct Certificates {
    ctx: Arc<Context>,
    objects: Objects,
    tls: TlsArgs,
    names: Vec<String>,
    /// What the last event said.
    announced: Option<RotationState>,
}

/// What was read in one round.
struct Read {
    authorities: AuthoritySecret,
    source: Option<CertificateSecret>,
    served: ServedSecret,
    bundle: BundleMap,
    observed: ObservedCertificates,
}

impl Certificates {
    /// In this namespace, which is the operator's own.
    pub fn new(ctx: Arc<Context>, tls: TlsArgs, namespace: &str) -> Self {
        let objects = Objects::new(ctx.client.clone(), namespace);
        let names = dns_names(namespace, tls.cluster_domain.as_deref());
        Self { ctx, objects, tls, names, announced: None }
    }

    /// Looks, and writes what is due, until `stop`. Without TLS there is nothing to do.
    pub async fn run(mut self, stop: CancellationToken) {
        if self.tls.gateway_tls == TlsMode::Off {
            stop.cancelled().await;
            return;
        }
        loop {
            let pause = match self.round().await {
                Ok(pause) => pause,
                Err(error) => {
                    tracing::warn!(
                        error = format!("{error:#}"),
                        "the gateway's certificate could not be looked at"
                    );
                    SHORT_PAUSE
                }
            };
            if stop.run_until_cancelled(tokio::time::sleep(pause)).await.is_none() {
                return;
            }
        }
    }

    /// One round. Returns the pause after it.
    async fn round(&mut self) -> anyhow::Result<Duration> {
        let read = self.read(Timestamp::now()).await?;
        let plan = read.observed.plan();
        self.trust(&read);
        self.measure(&read, &plan);
        self.announce(&plan).await;
        if !plan.steps.is_empty() {
            for step in &plan.steps {
                if let Err(error) = self.perform(step, &read).await {
                    let error = format!("{error:#}");
                    tracing::warn!(error, step = step.name(), "a step of the gateway's certificate failed");
                }
            }
            return Ok(SHORT_PAUSE);
        }
        let until = plan.next.and_then(|next| Duration::try_from(next.duration_since(Timestamp::now())).ok());
        Ok(until.unwrap_or(LONGEST_PAUSE).clamp(SHORT_PAUSE, LONGEST_PAUSE))
    }

    async fn read(&self, now: Timestamp) -> anyhow::Result<Read> {
        let (served, bundle) = (self.objects.served().await?, self.objects.bundle().await?);
        let (mut authorities, mut source) = (AuthoritySecret::default(), None);
        let from = match &self.tls.gateway_tls_secret {
            None => {
                authorities = self.objects.authorities().await?;
                CertificateSource::Own {
                    newest: authorities.newest.as_ref().map(|it| it.facts.clone()),
                    previous: authorities.previous.as_ref().map(|it| it.facts.clone()),
                    rotate: authorities.rotate,
                }
            }
            Some(name) => match self.objects.source(name).await {
                Ok((facts, content)) => {
                    source = Some(content);
                    CertificateSource::Secret(Some(facts))
                }
                Err(error) => {
                    tracing::warn!(
                        error = format!("{error:#}"),
                        "the certificate of the gateway cannot be read"
                    );
                    CertificateSource::Secret(None)
                }
            },
        };
        let observed = ObservedCertificates {
            now,
            settings: self.tls.settings(),
            source: from,
            served: served.content.as_ref().map(|(facts, _)| facts.clone()),
            published: bundle.content.as_ref().map(|(facts, _)| facts.clone()),
            names: self.names.clone(),
            pods: self.ctx.pods.trust(),
        };
        Ok(Read { authorities, source, served, bundle, observed })
    }

    async fn perform(&self, step: &CertificateStep, read: &Read) -> anyhow::Result<()> {
        let now = read.observed.now;
        match step {
            CertificateStep::CreateAuthority => {
                let newest = issue::authority(now, self.tls.settings().ca_lifetime)?;
                let previous = read.authorities.newest.as_ref().map(|it| &it.keyed);
                self.objects.write_authorities(&read.authorities, &newest, previous).await
            }
            CertificateStep::ForgetPrevious => {
                let newest = read.authorities.newest.as_ref().context("there is no CA")?;
                self.objects.write_authorities(&read.authorities, &newest.keyed, None).await
            }
            CertificateStep::Publish(ids) => {
                let known = read.known_certificates();
                self.objects.write_bundle(&read.bundle, &bundle_of(ids, &known), now).await
            }
            CertificateStep::UpdatePods(pods) => self.update_pods(pods, read).await,
            CertificateStep::Issue(id) => {
                let authorities = [&read.authorities.newest, &read.authorities.previous];
                let authority = authorities.into_iter().flatten().find(|it| it.facts.id == *id);
                let authority = authority.context("the CA is not known")?;
                let lifetime = self.tls.settings().leaf_lifetime;
                let keyed = issue::leaf(&authority.keyed, &self.names, now, lifetime)?;
                let authorities = authority.keyed.certificate.clone();
                self.serve(&CertificateSecret { keyed, authorities }, read).await
            }
            CertificateStep::Copy => {
                let source = read.source.as_ref().context("there is no certificate to copy")?;
                self.serve(source, read).await
            }
            CertificateStep::SetPlainOpen(open) => {
                let (served, content) = read.served.content.as_ref().context("there is no certificate")?;
                let notes = ServedNotes { since: served.since, plain_open: Some(*open) };
                self.objects.write_served(&read.served, content, notes).await
            }
        }
    }

    /// Has the gateway serve this certificate. A renewal by the same CA keeps the time of the change to that CA.
    async fn serve(&self, content: &CertificateSecret, read: &Read) -> anyhow::Result<()> {
        let served = read.observed.served.as_ref();
        let authorities = by_id(content.authorities.as_bytes())?;
        let same = served.filter(|it| it.authorities.iter().eq(authorities.keys()));
        let since = same.map_or(read.observed.now, |it| it.since);
        let plain_open = served.and_then(|it| it.plain_open);
        self.objects.write_served(&read.served, content, ServedNotes { since, plain_open }).await
    }

    /// Patches the annotations of the pods. The kubelet then writes the file that the workers read.
    async fn update_pods(&self, pods: &[PodTrust], read: &Read) -> anyhow::Result<()> {
        let (published, certificates) = read.bundle.content.as_ref().context("no bundle is published")?;
        let bundle = bundle_of(&published.authorities, certificates);
        let patches = pods.iter().take(PATCHES_IN_A_ROUND).cloned().map(|pod| {
            let annotations = json!({
                names::ANNOTATION_CA: bundle.pem,
                names::ANNOTATION_CA_IDS: bundle.ids,
                names::ANNOTATION_CA_SINCE: Timestamp::now().to_string(),
            });
            let patch = json!({ "metadata": { "uid": pod.uid, "annotations": annotations } });
            let api: Api<Pod> = self.ctx.pods_in(&pod.namespace);
            async move {
                let params = PatchParams {
                    field_manager: Some(names::FIELD_MANAGER.into()),
                    ..PatchParams::default()
                };
                match api.patch_metadata(&pod.name, &params, &Patch::Merge(&patch)).await {
                    Ok(_) => None,
                    // Another pod of this name, or none: the watch will show it.
                    Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => None,
                    Err(error) => Some((pod, error)),
                }
            }
        });
        let patches = futures::stream::iter(patches).buffer_unordered(PATCHES_AT_ONCE);
        let failures: Vec<_> = patches.filter_map(|failure| async { failure }).collect().await;
        match failures.into_iter().next() {
            None => Ok(()),
            Some((pod, error)) => Err(error)
                .with_context(|| format!("giving the pod {}/{} the new CA", pod.namespace, pod.name)),
        }
    }

    /// New pods get the published bundle.
    fn trust(&self, read: &Read) {
        if let Some((published, certificates)) = &read.bundle.content {
            self.ctx.gateway.set(bundle_of(&published.authorities, certificates));
        }
    }

    fn measure(&self, read: &Read, plan: &CertificatePlan) {
        let waiting = match plan.state {
            RotationState::Waiting { pods } => pods,
            RotationState::Starting | RotationState::Steady | RotationState::Closing => 0,
        };
        let served = read.observed.served.as_ref().map(|it| it.not_after);
        let authority = read.authorities.newest.as_ref().map(|it| it.facts.not_after);
        self.ctx.metrics.set_certificates(served, authority, [waiting, plan.plain_workers]);
    }

    /// Logs a change of the state, and writes an event about it on the ConfigMap of the CAs.
    async fn announce(&mut self, plan: &CertificatePlan) {
        let is_same =
            self.announced.is_some_and(|it| RotationReason::of(it) == RotationReason::of(plan.state));
        if is_same {
            return;
        }
        let reason = RotationReason::of(plan.state);
        // A steady state is no news, unless something came before it.
        if self.announced.is_none() && reason == RotationReason::Done {
            self.announced = Some(plan.state);
            return;
        }
        tracing::info!(reason = reason.text(), "the CA of the gateway: {}", reason.note());
        let event = Event {
            type_: EventType::Normal,
            reason: reason.text().into(),
            note: Some(reason.note().into()),
            action: "Rotate".into(),
            secondary: None,
        };
        match self.publish(&event).await {
            Ok(()) => self.announced = Some(plan.state),
            Err(error) => {
                tracing::debug!(%error, "an event about the CA could not be written; it is tried again")
            }
        }
    }

    async fn publish(&self, event: &Event) -> kube::Result<()> {
        let map = self.objects.config_maps().get_metadata(CA).await?;
        let reference = ConfigMap { metadata: map.metadata, ..ConfigMap::default() }.object_ref(&());
        self.ctx.recorder().publish(event, &reference).await
    }
}

impl Read {
    /// All certificates of CAs that are known, by id.
    fn known_certificates(&self) -> BTreeMap<String, rustls::pki_types::CertificateDer<'static>> {
        let own = [&self.authorities.newest, &self.authorities.previous];
        let own = own.into_iter().flatten().map(|it| &it.keyed.certificate);
        let served = self.served.content.iter().map(|(_, content)| &content.authorities);
        let source = self.source.iter().map(|content| &content.authorities);
        let pem = own.chain(served).chain(source).filter_map(|pem| by_id(pem.as_bytes()).ok()).flatten();
        let published = self.bundle.content.iter().flat_map(|(_, certificates)| certificates.clone());
        published.chain(pem).collect()
    }
}

/// What an event says about a change of the CA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RotationReason {
    Starting,
    Waiting,
    Closing,
    Done,
}

impl RotationReason {
    fn of(state: RotationState) -> Self {
        match state {
            RotationState::Starting => Self::Starting,
            RotationState::Waiting { .. } => Self::Waiting,
            RotationState::Closing => Self::Closing,
            RotationState::Steady => Self::Done,
        }
    }

    fn text(self) -> &'static str {
        match self {
            Self::Starting => "CertificateMissing",
            Self::Waiting => "CARotationStarted",
            Self::Closing => "CARotated",
            Self::Done => "CARotationCompleted",
        }
    }

    fn note(self) -> &'static str {
        match self {
            Self::Starting => "the gateway has no certificate yet",
            Self::Waiting => {
                "workers are given the new CA; the gateway's certificate is replaced once all of them have had it for a while"
            }
            Self::Closing => {
                "the gateway serves a certificate of the new CA; workers still trust the old CA for a while"
            }
            Self::Done => "workers trust the CA of the gateway's certificate and no other",
        }
    }
}

#[cfg(test)]
mod tests;
