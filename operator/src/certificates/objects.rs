//! Reads and writes the Secrets and the ConfigMap. Every write names the version that was read, so that of two operators
//! only one succeeds.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Context as _;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use dalsegno_core::CaBundle;
use dalsegno_core::certificates::{
    Authority, CaId, PublishedBundle, ServedCertificate, SourceCertificate, ids_text,
};
use dalsegno_crds::names;
use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::PostParams;
use kube::{Api, Client, ResourceExt as _};
use rustls::pki_types::CertificateDer;

use super::issue::{KeyedCertificate, by_id, facts};
use super::{CA, CA_CERTIFICATE, CERTIFICATE, CLOSED, OPEN, PLAIN_HTTP, PRIVATE_KEY, SERVED, SINCE};

/// Keys of the CAs in their Secret.
const CA_KEY: &str = "ca.key";
const PREVIOUS_CERTIFICATE: &str = "previous.crt";
const PREVIOUS_KEY: &str = "previous.key";

/// Annotation of the CA's Secret with which a person asks for another CA.
const ROTATE: &str = "dalsegno.dev/rotate";

/// A CA of the operator.
#[derive(Clone)]
pub struct OwnAuthority {
    /// What the plan needs of it.
    pub facts: Authority,
    /// Its certificate and key.
    pub keyed: KeyedCertificate,
}

/// The Secret with the operator's CAs.
#[derive(Clone, Default)]
pub struct AuthoritySecret {
    version: Option<String>,
    /// The newest CA.
    pub newest: Option<OwnAuthority>,
    /// The one before.
    pub previous: Option<OwnAuthority>,
    /// A person asks for another CA.
    pub rotate: bool,
}

/// A certificate with its CA, in a Secret.
#[derive(Clone)]
pub struct CertificateSecret {
    /// The certificate and its key.
    pub keyed: KeyedCertificate,
    /// The CAs that verify it, in PEM.
    pub authorities: String,
}

/// The Secret that the gateway serves from.
#[derive(Clone, Default)]
pub struct ServedSecret {
    version: Option<String>,
    /// What the plan needs of it, and the PEM. `None`: there is no usable certificate.
    pub content: Option<(ServedCertificate, CertificateSecret)>,
}

/// What the annotations of the served certificate say.
#[derive(Clone, Copy)]
pub struct ServedNotes {
    /// Since when the gateway serves a certificate of this CA.
    pub since: Timestamp,
    /// Whether the gateway serves workers without TLS. `None`: nobody has decided.
    pub plain_open: Option<bool>,
}

/// The ConfigMap with the bundle.
#[derive(Clone, Default)]
pub struct BundleMap {
    version: Option<String>,
    /// What the plan needs of it, and the certificates. `None`: there is no usable bundle.
    pub content: Option<(PublishedBundle, BTreeMap<CaId, CertificateDer<'static>>)>,
}

/// The objects in the operator's own namespace.
#[derive(Clone)]
pub struct Objects {
    secrets: Api<Secret>,
    config_maps: Api<ConfigMap>,
}

impl Objects {
    /// In this namespace.
    pub fn new(client: Client, namespace: &str) -> Self {
        Self {
            secrets: Api::namespaced(client.clone(), namespace),
            config_maps: Api::namespaced(client, namespace),
        }
    }

    /// The operator's CAs. A CA that cannot be read counts as missing.
    ///
    /// # Errors
    ///
    /// The API server gave no answer.
    pub async fn authorities(&self) -> anyhow::Result<AuthoritySecret> {
        let found = self.secrets.get_opt(CA).await.context("reading the Secret of the CA")?;
        let Some(secret) = found else { return Ok(AuthoritySecret::default()) };
        let authority = |certificate: &str, key: &str| {
            let keyed =
                KeyedCertificate { certificate: text(&secret, certificate)?, key: text(&secret, key)? };
            let read = facts(keyed.certificate.as_bytes()).inspect_err(|error| {
                tracing::warn!(
                    error = format!("{error:#}"),
                    key = certificate,
                    "the Secret of the CA is damaged"
                );
            });
            let facts = read.ok()?;
            let facts = Authority { id: facts.id, not_before: facts.not_before, not_after: facts.not_after };
            Some(OwnAuthority { facts, keyed })
        };
        Ok(AuthoritySecret {
            version: secret.resource_version(),
            newest: authority(CA_CERTIFICATE, CA_KEY),
            previous: authority(PREVIOUS_CERTIFICATE, PREVIOUS_KEY),
            rotate: secret.annotations().contains_key(ROTATE),
        })
    }

    /// Writes the operator's CAs. One that makes another the CA before answers a person who asked for another one.
    ///
    /// # Errors
    ///
    /// The Secret has changed since it was read, or the API server refused the write.
    pub async fn write_authorities(
        &self,
        read: &AuthoritySecret,
        newest: &KeyedCertificate,
        previous: Option<&KeyedCertificate>,
    ) -> anyhow::Result<()> {
        let mut data = vec![(CA_CERTIFICATE, &newest.certificate), (CA_KEY, &newest.key)];
        if let Some(previous) = previous {
            data.extend([(PREVIOUS_CERTIFICATE, &previous.certificate), (PREVIOUS_KEY, &previous.key)]);
        }
        // Deleting the key of the CA before answers no request.
        let is_open = read.rotate && previous.is_none();
        let annotations = is_open.then(|| (ROTATE.to_owned(), "now".to_owned())).into_iter().collect();
        let metadata = metadata(CA, read.version.clone(), annotations);
        let secret = Secret {
            metadata,
            type_: Some("Opaque".to_owned()),
            data: Some(data.into_iter().map(|(key, value)| bytes(key, value)).collect()),
            ..Secret::default()
        };
        self.write_secret(secret).await.context("writing the Secret of the CA")
    }

    /// The certificate in a Secret of cert-manager or of a person.
    ///
    /// # Errors
    ///
    /// It does not exist, or cannot be used.
    pub async fn source(&self, name: &str) -> anyhow::Result<(SourceCertificate, CertificateSecret)> {
        let found = self.secrets.get_opt(name).await.with_context(|| format!("reading the Secret {name}"))?;
        let secret = found.with_context(|| format!("there is no Secret {name}"))?;
        let content = content(&secret).with_context(|| format!("the Secret {name} cannot be used"))?;
        let facts = facts(content.keyed.certificate.as_bytes())
            .with_context(|| format!("{CERTIFICATE} of the Secret {name}"))?;
        let authorities = by_id(content.authorities.as_bytes())
            .with_context(|| format!("{CA_CERTIFICATE} of the Secret {name}"))?;
        let (chain, key) = (content.keyed.certificate.as_bytes(), content.keyed.key.as_bytes());
        dalsegno_gateway::tls::server_config(chain, key).with_context(|| format!("the Secret {name}"))?;
        let authorities = authorities.into_keys().collect();
        Ok((SourceCertificate { id: facts.id, authorities }, content))
    }

    /// The certificate that the gateway serves.
    ///
    /// # Errors
    ///
    /// The API server gave no answer.
    pub async fn served(&self) -> anyhow::Result<ServedSecret> {
        let found = self.secrets.get_opt(SERVED).await.context("reading the Secret of the certificate")?;
        let Some(secret) = found else { return Ok(ServedSecret::default()) };
        let read = content(&secret).and_then(|content| {
            let facts = facts(content.keyed.certificate.as_bytes())?;
            let served = ServedCertificate {
                id: facts.id,
                authorities: by_id(content.authorities.as_bytes())?.into_keys().collect(),
                not_before: facts.not_before,
                not_after: facts.not_after,
                since: since(&secret.metadata).unwrap_or(facts.not_before),
                names: facts.names,
                plain_open: plain_open(&secret),
            };
            Ok((served, content))
        });
        let content = read.inspect_err(|error| {
            tracing::warn!(
                error = format!("{error:#}"),
                "the Secret of the certificate is damaged; it is made again"
            );
        });
        Ok(ServedSecret { version: secret.resource_version(), content: content.ok() })
    }

    /// Writes the certificate that the gateway serves.
    ///
    /// # Errors
    ///
    /// The Secret has changed since it was read, or the API server refused the write.
    pub async fn write_served(
        &self,
        read: &ServedSecret,
        content: &CertificateSecret,
        ServedNotes { since, plain_open }: ServedNotes,
    ) -> anyhow::Result<()> {
        let mut annotations = BTreeMap::from([(SINCE.to_owned(), since.to_string())]);
        if let Some(open) = plain_open {
            annotations.insert(PLAIN_HTTP.to_owned(), if open { OPEN } else { CLOSED }.to_owned());
        }
        let CertificateSecret { keyed: KeyedCertificate { certificate, key }, authorities } = content;
        let data = [(CERTIFICATE, certificate), (PRIVATE_KEY, key), (CA_CERTIFICATE, authorities)];
        let secret = Secret {
            metadata: metadata(SERVED, read.version.clone(), annotations),
            type_: Some("kubernetes.io/tls".to_owned()),
            data: Some(data.into_iter().map(|(key, value)| bytes(key, value)).collect()),
            ..Secret::default()
        };
        self.write_secret(secret).await.context("writing the Secret of the certificate")
    }

    /// The published bundle.
    ///
    /// # Errors
    ///
    /// The API server gave no answer.
    pub async fn bundle(&self) -> anyhow::Result<BundleMap> {
        let found = self.config_maps.get_opt(CA).await.context("reading the ConfigMap of the CAs")?;
        let Some(map) = found else { return Ok(BundleMap::default()) };
        let pem = map.data.as_ref().and_then(|it| it.get(CA_CERTIFICATE));
        let certificates = pem.and_then(|pem| by_id(pem.as_bytes()).ok()).filter(|it| !it.is_empty());
        let content = certificates.zip(since(&map.metadata)).map(|(certificates, since)| {
            (PublishedBundle { authorities: certificates.keys().cloned().collect(), since }, certificates)
        });
        Ok(BundleMap { version: map.resource_version(), content })
    }

    /// Publishes a bundle.
    ///
    /// # Errors
    ///
    /// The ConfigMap has changed since it was read, or the API server refused the write.
    pub async fn write_bundle(
        &self,
        read: &BundleMap,
        bundle: &CaBundle,
        now: Timestamp,
    ) -> anyhow::Result<()> {
        let annotations = BTreeMap::from([(SINCE.to_owned(), now.to_string())]);
        let map = ConfigMap {
            metadata: metadata(CA, read.version.clone(), annotations),
            data: Some(BTreeMap::from([(CA_CERTIFICATE.to_owned(), bundle.pem.clone())])),
            ..ConfigMap::default()
        };
        let params = PostParams::default();
        let written = match read.version {
            Some(_) => self.config_maps.replace(CA, &params, &map).await,
            None => self.config_maps.create(&params, &map).await,
        };
        written.map(drop).context("writing the ConfigMap of the CAs")
    }

    /// The ConfigMaps of the operator's own namespace.
    pub fn config_maps(&self) -> &Api<ConfigMap> {
        &self.config_maps
    }

    async fn write_secret(&self, secret: Secret) -> kube::Result<()> {
        let params = PostParams::default();
        match &secret.metadata.resource_version {
            Some(_) => self.secrets.replace(&secret.name_any(), &params, &secret).await.map(drop),
            None => self.secrets.create(&params, &secret).await.map(drop),
        }
    }
}

/// The bundle of these certificates.
pub fn bundle_of<'a>(
    ids: &BTreeSet<CaId>,
    known: impl IntoIterator<Item = (&'a CaId, &'a CertificateDer<'static>)>,
) -> CaBundle {
    let known: BTreeMap<_, _> = known.into_iter().collect();
    let found: Vec<_> = ids.iter().filter_map(|id| known.get(id)).collect();
    let pem = found.iter().map(|der| to_pem(der)).collect();
    CaBundle { pem, ids: ids_text(ids) }
}

fn to_pem(der: &[u8]) -> String {
    let base64 = STANDARD.encode(der);
    let lines = base64.as_bytes().chunks(64).map(String::from_utf8_lossy).collect::<Vec<_>>().join("\n");
    format!("-----BEGIN CERTIFICATE-----\n{lines}\n-----END CERTIFICATE-----\n")
}

/// Whether the gateway serves workers without TLS, as the Secret that it serves from says.
pub fn plain_open(secret: &Secret) -> Option<bool> {
    match secret.annotations().get(PLAIN_HTTP)?.as_str() {
        OPEN => Some(true),
        CLOSED => Some(false),
        _ => None,
    }
}

/// The certificate, the key and the CAs of a Secret.
///
/// # Errors
///
/// One of them is missing.
pub fn content(secret: &Secret) -> anyhow::Result<CertificateSecret> {
    let get = |key: &str| text(secret, key).with_context(|| format!("it has no {key}"));
    let keyed = KeyedCertificate { certificate: get(CERTIFICATE)?, key: get(PRIVATE_KEY)? };
    Ok(CertificateSecret { keyed, authorities: get(CA_CERTIFICATE)? })
}

fn text(secret: &Secret, key: &str) -> Option<String> {
    let ByteString(bytes) = secret.data.as_ref()?.get(key)?;
    String::from_utf8(bytes.clone()).ok().filter(|text| !text.is_empty())
}

fn bytes(key: &str, value: &str) -> (String, ByteString) {
    (key.to_owned(), ByteString(value.as_bytes().to_vec()))
}

fn since(metadata: &ObjectMeta) -> Option<Timestamp> {
    metadata.annotations.as_ref()?.get(SINCE)?.parse().ok()
}

fn metadata(name: &str, version: Option<String>, annotations: BTreeMap<String, String>) -> ObjectMeta {
    ObjectMeta {
        name: Some(name.to_owned()),
        resource_version: version,
        labels: Some(BTreeMap::from([(names::LABEL_MANAGED_BY.to_owned(), names::MANAGED_BY.to_owned())])),
        annotations: Some(annotations),
        ..ObjectMeta::default()
    }
}
