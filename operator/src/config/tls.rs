//! Arguments for the TLS of the gateway.

use std::net::SocketAddr;
use std::time::Duration;

use clap::{Args, ValueEnum};
use dalsegno_core::certificates::CertificateSettings;
use jiff::SignedDuration;

use super::values::duration;

/// Where the gateway's certificate comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TlsMode {
    /// The operator has a CA of its own.
    Operator,
    /// The Secret of `--gateway-tls-secret`.
    Secret,
    /// Workers use plain HTTP.
    Off,
}

/// TLS between workers, users and the gateway (docs/guides/tls.md).
#[derive(Clone, Debug, Args)]
pub struct TlsArgs {
    /// Where the gateway's certificate comes from.
    #[arg(long, env = "DALSEGNO_GATEWAY_TLS", default_value = "off", value_name = "MODE")]
    pub gateway_tls: TlsMode,
    /// Address of the worker contract over TLS. It is served once there is a certificate. Without TLS, workers that were
    /// started with it are served on.
    #[arg(
        long,
        env = "DALSEGNO_GATEWAY_TLS_LISTEN",
        value_name = "ADDRESS",
        required_if_eq_any([("gateway_tls", "operator"), ("gateway_tls", "secret")])
    )]
    pub gateway_tls_listen: Option<SocketAddr>,
    /// Secret of the mode `secret`, of type kubernetes.io/tls and with ca.crt, in this program's own namespace.
    #[arg(
        long,
        env = "DALSEGNO_GATEWAY_TLS_SECRET",
        value_name = "NAME",
        required_if_eq("gateway_tls", "secret")
    )]
    pub gateway_tls_secret: Option<String>,
    /// Domain of the cluster's DNS, for the names of the certificate. Unset: names without it.
    #[arg(long, env = "DALSEGNO_CLUSTER_DOMAIN", value_name = "DOMAIN")]
    pub cluster_domain: Option<String>,
    /// Lifetime of the gateway's certificate. It is renewed after two thirds of it.
    #[arg(long, env = "DALSEGNO_CERTIFICATE_LIFETIME", default_value = "2160h", value_name = "DURATION", value_parser = duration)]
    pub certificate_lifetime: Duration,
    /// Lifetime of the operator's CA. It is replaced after two thirds of it.
    #[arg(long, env = "DALSEGNO_CA_LIFETIME", default_value = "8760h", value_name = "DURATION", value_parser = duration)]
    pub ca_lifetime: Duration,
    /// How long every worker's pod must have had a new CA before the gateway's certificate is replaced. The kubelet needs up
    /// to a minute and a half to write it into a pod.
    #[arg(long, env = "DALSEGNO_CA_SETTLE", default_value = "2m", value_name = "DURATION", value_parser = duration)]
    pub ca_settle: Duration,
    /// How long workers trust the old CA after the gateway's certificate was replaced.
    #[arg(long, env = "DALSEGNO_CA_KEEP", default_value = "24h", value_name = "DURATION", value_parser = duration)]
    pub ca_keep: Duration,
}

impl TlsArgs {
    /// Without flags.
    #[cfg(test)]
    pub fn off() -> Self {
        #[derive(clap::Parser)]
        struct Program {
            #[command(flatten)]
            tls: TlsArgs,
        }
        <Program as clap::Parser>::parse_from(["dalsegno"]).tls
    }

    /// The deadlines of certificates.
    pub fn settings(&self) -> CertificateSettings {
        let signed = |it: Duration| SignedDuration::try_from(it).unwrap_or(SignedDuration::MAX);
        CertificateSettings {
            ca_lifetime: signed(self.ca_lifetime),
            leaf_lifetime: signed(self.certificate_lifetime),
            settle: signed(self.ca_settle),
            keep_old: signed(self.ca_keep),
        }
    }
}
