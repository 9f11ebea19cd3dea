//! Registers the aggregated API at the API server, and withdraws it, as [`dalsegno_core::api_registration`] decides.

use std::time::Duration;

use anyhow::Context as _;
use dalsegno_core::api_registration::{Breaker, ObservedRegistration, Registration, RegistrationSettings};
use dalsegno_crds::names;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::{Api, Client, Resource as _};
use tokio_util::sync::CancellationToken;

use super::api_service::{self, Registry, Target, available_condition};
use super::probe;
use crate::certificates::{CA, CA_CERTIFICATE};
use crate::config::OperatorArgs;
use crate::controller::context::EVENT_TIMEOUT;
use crate::kube_client::with_timeout;
use crate::metrics::PeopleApiMetrics;

/// How often the registration is looked at while it is wanted.
const INTERVAL: Duration = Duration::from_secs(5);
/// How often it is looked at while it is not: somebody may have switched it off.
const IDLE_INTERVAL: Duration = Duration::from_secs(60);
/// Timeout of each request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Most characters of an event's note.
const NOTE_CHARS: usize = 900;

/// Registers and withdraws.
pub struct Registrar {
    registry: Registry,
    client: Client,
    wanted: bool,
    settings: RegistrationSettings,
    namespace: String,
    pod_name: String,
    metrics: PeopleApiMetrics,
    breaker: Breaker,
}

/// Why the registration has changed, as the reason of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reason {
    Registered,
    Removed,
    Withdrawn,
}

impl Reason {
    fn text(self) -> &'static str {
        match self {
            Self::Registered => "PeopleApiRegistered",
            Self::Removed => "PeopleApiRemoved",
            Self::Withdrawn => "PeopleApiWithdrawn",
        }
    }

    fn type_(self) -> EventType {
        match self {
            Self::Registered | Self::Removed => EventType::Normal,
            Self::Withdrawn => EventType::Warning,
        }
    }
}

impl Registrar {
    /// A registrar whose breaker is closed.
    pub fn new(client: Client, args: &OperatorArgs, metrics: PeopleApiMetrics) -> Self {
        let client = with_timeout(client, REQUEST_TIMEOUT);
        Self {
            registry: Registry::new(client.clone(), &args.namespace),
            client,
            wanted: args.people_api.people_api,
            settings: args.people_api.settings(),
            namespace: args.namespace.clone(),
            pod_name: args.pod_name.clone(),
            metrics,
            breaker: Breaker::default(),
        }
    }

    /// Looks at the registration again and again, until `stop`.
    pub async fn run(mut self, stop: CancellationToken) {
        let interval = if self.wanted { INTERVAL } else { IDLE_INTERVAL };
        loop {
            let step = async {
                if let Err(error) = self.step().await {
                    tracing::warn!(
                        error = format!("{error:#}"),
                        "the registration of the aggregated API is not known"
                    );
                }
            };
            if stop.run_until_cancelled(step).await.is_none()
                || stop.run_until_cancelled(tokio::time::sleep(interval)).await.is_none()
            {
                return;
            }
        }
    }

    /// Observes, decides, acts.
    async fn step(&mut self) -> anyhow::Result<()> {
        let found = self.registry.read().await?;
        let target = if self.wanted { self.target().await? } else { None };
        let current = found.as_ref().map(|service| self.registry.facts(service, target.as_ref()));
        let served = match &target {
            Some(target) if current.is_none() => self.is_served(target).await,
            _ => false,
        };
        let observed = ObservedRegistration { wanted: self.wanted, current, served };
        let (decision, breaker) = observed.decide(self.breaker, self.settings, Timestamp::now());
        self.act(decision, found.as_ref(), target.as_ref()).await?;
        // Only after the write: a withdrawal that failed is due again at once.
        self.breaker = breaker;
        Ok(())
    }

    async fn act(
        &self,
        decision: Registration,
        found: Option<&APIService>,
        target: Option<&Target>,
    ) -> anyhow::Result<()> {
        let mut is_registered = found.is_some();
        match (decision, found, target) {
            (Registration::Apply, _, Some(target)) => {
                self.registry.apply(target).await?;
                is_registered = true;
                if found.is_none() {
                    let note = "people reach the payloads of runs with their kubeconfig alone";
                    self.publish(Reason::Registered, note.to_owned()).await;
                }
            }
            (Registration::Remove, Some(service), _) => {
                self.registry.delete(service).await?;
                is_registered = false;
                self.publish(Reason::Removed, "peopleApi.aggregated is off".to_owned()).await;
            }
            (Registration::Withdraw, Some(service), _) => {
                self.registry.delete(service).await?;
                is_registered = false;
                self.metrics.withdrawals.inc();
                self.publish(Reason::Withdrawn, self.withdrawal_note(service)).await;
            }
            (Registration::LeaveForeign, Some(_), _) if self.wanted => {
                is_registered = false;
                tracing::warn!(
                    name = api_service::name(),
                    "somebody else has made the APIService: the operator does not change it"
                );
            }
            (
                Registration::Keep
                | Registration::LeaveForeign
                | Registration::Apply
                | Registration::Remove
                | Registration::Withdraw,
                ..,
            ) => {}
        }
        self.metrics.registered.set(is_registered.into());
        Ok(())
    }

    fn withdrawal_note(&self, service: &APIService) -> String {
        let why = available_condition(service).and_then(|it| it.message.as_deref());
        let note = format!(
            "the API server has reached no gateway for {} s, so the aggregated API is withdrawn: otherwise no namespace of \
             the cluster could be deleted. Use the token door of the gateway meanwhile. The API server says: {}",
            self.settings.unavailable_after.as_secs(),
            why.unwrap_or("nothing")
        );
        note.chars().take(NOTE_CHARS).collect()
    }

    /// What is to be registered; `None`: there is no bundle of CAs yet.
    async fn target(&self) -> anyhow::Result<Option<Target>> {
        let maps: Api<ConfigMap> = Api::namespaced(self.client.clone(), &self.namespace);
        let map = maps.get_opt(CA).await.context("reading the bundle of CAs")?;
        match map.and_then(|it| it.data?.remove(CA_CERTIFICATE)) {
            Some(bundle) => self.registry.target(bundle).await.map(Some),
            None => Ok(None),
        }
    }

    async fn is_served(&self, target: &Target) -> bool {
        let probed = probe::expect_certificate(&self.namespace, &target.ca_bundle).await;
        probed
            .inspect_err(|error| {
                tracing::info!(error = format!("{error:#}"), "the aggregated API is not registered yet");
            })
            .is_ok()
    }

    /// Writes the event on this program's own pod, and the same into the log.
    async fn publish(&self, reason: Reason, note: String) {
        match reason {
            Reason::Withdrawn => tracing::warn!(note, "the aggregated API is withdrawn"),
            Reason::Registered | Reason::Removed => {
                tracing::info!(reason = reason.text(), note, "the aggregated API")
            }
        }
        let publish = async {
            let client = with_timeout(self.client.clone(), EVENT_TIMEOUT);
            let pod =
                Api::<Pod>::namespaced(client.clone(), &self.namespace).get_metadata(&self.pod_name).await?;
            let reference = Pod { metadata: pod.metadata, ..Pod::default() }.object_ref(&());
            let reporter =
                Reporter { controller: names::FIELD_MANAGER.into(), instance: Some(self.pod_name.clone()) };
            let event = Event {
                type_: reason.type_(),
                reason: reason.text().into(),
                note: Some(note.clone()),
                action: "Register".into(),
                secondary: None,
            };
            Recorder::new(client, reporter).publish(&event, &reference).await
        };
        if let Err(error) = publish.await {
            tracing::warn!(%error, "an event on the aggregated API could not be written");
        }
    }
}
