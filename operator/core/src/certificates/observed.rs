//! What stands of the gateway's certificate.

use std::collections::BTreeSet;

use dalsegno_crds::names;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;

use crate::pod;

/// Name of a CA's certificate: the first 16 hexadecimal digits of the SHA-256 of its DER.
pub type CaId = String;

/// Lengths of the deadlines of certificates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CertificateSettings {
    /// Lifetime of a CA. After two thirds of it another one is made.
    pub ca_lifetime: SignedDuration,
    /// Lifetime of the gateway's certificate. After two thirds of it the certificate is renewed.
    pub leaf_lifetime: SignedDuration,
    /// How long every worker's pod must have had a new CA before the gateway uses it.
    pub settle: SignedDuration,
    /// How long a CA stays trusted after the gateway has changed to another one.
    pub keep_old: SignedDuration,
}

impl Default for CertificateSettings {
    fn default() -> Self {
        let days = |days: i64| SignedDuration::from_hours(24 * days);
        Self {
            ca_lifetime: days(365),
            leaf_lifetime: days(90),
            settle: SignedDuration::from_mins(2),
            keep_old: days(1),
        }
    }
}

/// What was observed of the certificate, its CA and the workers that must trust them.
#[derive(Clone, Debug)]
pub struct ObservedCertificates {
    /// The time of the observation.
    pub now: Timestamp,
    /// Lengths of the deadlines.
    pub settings: CertificateSettings,
    /// Where certificates come from.
    pub source: CertificateSource,
    /// The certificate that the gateway serves.
    pub served: Option<ServedCertificate>,
    /// The bundle of CAs that new pods get.
    pub published: Option<PublishedBundle>,
    /// The names that the certificate must have, if the operator issues it.
    pub names: Vec<String>,
    /// The pods whose worker may still run.
    pub pods: Vec<PodTrust>,
}

/// Where certificates come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CertificateSource {
    /// The operator's own CA.
    Own {
        /// The newest CA.
        newest: Option<Authority>,
        /// The CA before, until the served certificate is from the newest one.
        previous: Option<Authority>,
        /// A person asks for another CA.
        rotate: bool,
    },
    /// A Secret of cert-manager or of a person. `None`: it does not exist, or cannot be used.
    Secret(Option<SourceCertificate>),
}

/// A CA of the operator, with its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Authority {
    /// Its certificate.
    pub id: CaId,
    /// Start of its validity.
    pub not_before: Timestamp,
    /// End of its validity.
    pub not_after: Timestamp,
}

/// A certificate in the Secret of cert-manager or of a person.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceCertificate {
    /// Its id, as that of a CA.
    pub id: CaId,
    /// The CAs that verify it.
    pub authorities: BTreeSet<CaId>,
}

/// The certificate that the gateway serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServedCertificate {
    /// Its id, as that of a CA.
    pub id: CaId,
    /// The CAs that verify it.
    pub authorities: BTreeSet<CaId>,
    /// Start of its validity.
    pub not_before: Timestamp,
    /// End of its validity.
    pub not_after: Timestamp,
    /// Since when the gateway serves a certificate of these CAs.
    pub since: Timestamp,
    /// The names that it is valid for.
    pub names: BTreeSet<String>,
    /// Whether the gateway serves workers without TLS; `None`: nobody has decided.
    pub plain_open: Option<bool>,
}

/// The bundle of CAs that new pods get.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublishedBundle {
    /// Its certificates.
    pub authorities: BTreeSet<CaId>,
    /// Since when it has them.
    pub since: Timestamp,
}

/// What one pod trusts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodTrust {
    /// Namespace of the pod.
    pub namespace: String,
    /// Name of the pod.
    pub name: String,
    /// UID of the pod.
    pub uid: String,
    /// The CAs in its annotation. `None`: the pod was started without TLS.
    pub authorities: Option<BTreeSet<CaId>>,
    /// When its annotation was last changed. `None`: it has it from its creation.
    pub since: Option<Timestamp>,
}

impl PodTrust {
    /// Of a pod whose worker may still run; `None` if it has ended, or if it does not know of the gateway.
    pub fn of(pod: &Pod) -> Option<Self> {
        if pod::worker_has_ended(pod) || pod::is_external(&pod.metadata) {
            return None;
        }
        Some(Self {
            namespace: pod.metadata.namespace.clone()?,
            name: pod.metadata.name.clone()?,
            uid: pod.metadata.uid.clone()?,
            authorities: pod::annotation(pod, names::ANNOTATION_CA_IDS).map(parse_ids),
            since: pod::annotation(pod, names::ANNOTATION_CA_SINCE).and_then(|it| it.parse().ok()),
        })
    }
}

/// The ids as an annotation has them: in order, separated by commas.
pub fn ids_text(ids: &BTreeSet<CaId>) -> String {
    ids.iter().map(String::as_str).collect::<Vec<_>>().join(",")
}

/// Reads what [`ids_text`] wrote.
pub fn parse_ids(text: &str) -> BTreeSet<CaId> {
    text.split(',').filter(|id| !id.is_empty()).map(str::to_owned).collect()
}
