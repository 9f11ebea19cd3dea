//! The gateway's certificate and its CA: decides the next step from the objects that exist.
//!
//! # Guarantees
//!
//! - A pure function of what was observed and of the clock. A crash between two writes goes on with the next observation.
//! - The served certificate changes its CA only when every worker's pod has had the new CA for [`CertificateSettings::settle`],
//!   or when the served certificate is about to expire.
//! - A CA stays trusted for [`CertificateSettings::keep_old`] after the served certificate has changed to another one.
//!
//! # Assumptions
//!
//! - The kubelet writes a changed annotation into the pod's volume within [`CertificateSettings::settle`].

mod observed;
mod plan;

use dalsegno_crds::names;

pub use observed::{
    Authority, CaId, CertificateSettings, CertificateSource, ObservedCertificates, PodTrust, PublishedBundle,
    ServedCertificate, SourceCertificate, ids_text, parse_ids,
};
pub use plan::{CertificatePlan, CertificateStep, RotationState};

/// The names that the gateway's certificate is valid for: those of the Services in the release's namespace, as pods and the
/// API server call them.
pub fn dns_names(namespace: &str, cluster_domain: Option<&str>) -> Vec<String> {
    let services = [names::GATEWAY_SERVICE, names::AGGREGATED_SERVICE];
    let of = |service: &str| {
        let short = format!("{service}.{namespace}.svc");
        let long = cluster_domain.map(|domain| format!("{short}.{domain}"));
        std::iter::once(short).chain(long).collect::<Vec<_>>()
    };
    services.into_iter().flat_map(of).collect()
}
