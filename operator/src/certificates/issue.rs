//! Makes and reads certificates: ECDSA with the curve P-256.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, anyhow};
use dalsegno_core::certificates::CaId;
use jiff::{SignedDuration, Timestamp};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256,
};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use sha2::{Digest as _, Sha256};
use time::OffsetDateTime;
use x509_parser::prelude::{FromDer as _, GeneralName, X509Certificate};

/// A certificate begins to be valid this long before it is made, so that a worker whose clock is behind accepts it. For a
/// short lifetime it is a tenth of that.
const BACKDATED: SignedDuration = SignedDuration::from_hours(1);

/// A certificate and its private key, in PEM.
#[derive(Clone)]
pub struct KeyedCertificate {
    /// The certificate, and those between it and its CA.
    pub certificate: String,
    /// The private key.
    pub key: String,
}

/// What is read from a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateFacts {
    /// Its id.
    pub id: CaId,
    /// Start of its validity.
    pub not_before: Timestamp,
    /// End of its validity.
    pub not_after: Timestamp,
    /// The DNS names that it is valid for.
    pub names: BTreeSet<String>,
}

/// Makes a CA.
///
/// # Errors
///
/// The random number generator failed, or the lifetime is out of range.
pub fn authority(now: Timestamp, lifetime: SignedDuration) -> anyhow::Result<KeyedCertificate> {
    let mut params = params(Vec::new(), "CA", now, lifetime)?;
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).context("making the key of a CA")?;
    let certificate = params.self_signed(&key).context("making a CA")?;
    Ok(KeyedCertificate { certificate: certificate.pem(), key: key.serialize_pem() })
}

/// Issues the gateway's certificate for these names. It ends with its CA at the latest.
///
/// # Errors
///
/// The CA cannot be used.
pub fn leaf(
    authority: &KeyedCertificate,
    names: &[String],
    now: Timestamp,
    lifetime: SignedDuration,
) -> anyhow::Result<KeyedCertificate> {
    let mut params = params(names.to_vec(), "gateway", now, lifetime)?;
    let end = facts(authority.certificate.as_bytes())?.not_after;
    params.not_after = params.not_after.min(time(end)?);
    params.use_authority_key_identifier_extension = true;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let ca_key = KeyPair::from_pem(&authority.key).context("reading the key of the CA")?;
    let issuer = Issuer::from_ca_cert_pem(&authority.certificate, ca_key).context("reading the CA")?;
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).context("making the gateway's key")?;
    let certificate = params.signed_by(&key, &issuer).context("issuing the gateway's certificate")?;
    Ok(KeyedCertificate { certificate: certificate.pem(), key: key.serialize_pem() })
}

/// Each certificate has a subject of its own, so that a client that looks for the issuer by its name finds the right CA.
fn params(
    names: Vec<String>,
    what: &str,
    now: Timestamp,
    lifetime: SignedDuration,
) -> anyhow::Result<CertificateParams> {
    let mut params = CertificateParams::new(names).context("the names of the certificate")?;
    let mut subject = DistinguishedName::new();
    subject.push(DnType::OrganizationName, "Dal Segno");
    subject.push(DnType::CommonName, format!("Dal Segno {what} {now:.3}"));
    params.distinguished_name = subject;
    params.not_before = time(now - BACKDATED.min(lifetime / 10))?;
    params.not_after = time(now + lifetime)?;
    Ok(params)
}

fn time(at: Timestamp) -> anyhow::Result<OffsetDateTime> {
    OffsetDateTime::from_unix_timestamp(at.as_second()).context("a time of the certificate is out of range")
}

/// Reads the first certificate of a PEM text.
///
/// # Errors
///
/// There is none.
pub fn facts(pem: &[u8]) -> anyhow::Result<CertificateFacts> {
    let der =
        CertificateDer::from_pem_slice(pem).map_err(|error| anyhow!("no certificate in PEM: {error}"))?;
    let (_, certificate) = X509Certificate::from_der(&der).context("the certificate cannot be read")?;
    let validity = certificate.validity();
    let time = |at: i64| Timestamp::from_second(at).context("a time of the certificate is out of range");
    let names = certificate.subject_alternative_name().context("the names of the certificate")?;
    let names = names.iter().flat_map(|it| &it.value.general_names);
    let names = names.filter_map(|name| match name {
        GeneralName::DNSName(name) => Some((*name).to_owned()),
        _ => None,
    });
    Ok(CertificateFacts {
        id: id(&der),
        not_before: time(validity.not_before.timestamp())?,
        not_after: time(validity.not_after.timestamp())?,
        names: names.collect(),
    })
}

/// The certificates of a PEM text, by id.
///
/// # Errors
///
/// One of them is not valid PEM.
pub fn by_id(pem: &[u8]) -> anyhow::Result<BTreeMap<CaId, CertificateDer<'static>>> {
    let all = CertificateDer::pem_slice_iter(pem).map(|der| der.map(|der| (id(&der), der)));
    all.collect::<Result<_, _>>().map_err(|error| anyhow!("not valid PEM: {error}"))
}

fn id(der: &[u8]) -> CaId {
    Sha256::digest(der)[..8].iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a panic fails the test")]

    use std::sync::Arc;
    use std::time::Duration;

    use rustls::client::WebPkiServerVerifier;
    use rustls::client::danger::ServerCertVerifier as _;
    use rustls::pki_types::UnixTime;

    use super::*;

    fn now() -> Timestamp {
        "2026-11-26T12:00:00Z".parse().unwrap()
    }

    #[test]
    fn a_certificate_has_the_names_and_is_verified_by_its_ca_alone() {
        let (day, names) = (SignedDuration::from_hours(24), ["gateway.ns.svc".to_owned()]);
        let [ca, other] = [authority(now(), day * 30).unwrap(), authority(now(), day * 30).unwrap()];
        let leaf = leaf(&ca, &names, now(), day).unwrap();
        let read = facts(leaf.certificate.as_bytes()).unwrap();
        assert_eq!(read.names, names.into());
        assert_eq!(read.not_after, now() + day);
        assert_eq!(read.not_before, now() - BACKDATED, "a clock that is behind accepts it");
        let verify = |ca: &KeyedCertificate| {
            let mut roots = rustls::RootCertStore::empty();
            roots.add(by_id(ca.certificate.as_bytes()).unwrap().into_values().next().unwrap()).unwrap();
            let provider = Arc::new(rustls::crypto::ring::default_provider());
            let verifier =
                WebPkiServerVerifier::builder_with_provider(roots.into(), provider).build().unwrap();
            let leaf = by_id(leaf.certificate.as_bytes()).unwrap().into_values().next().unwrap();
            let at = Duration::from_secs(now().as_second().unsigned_abs());
            let name = "gateway.ns.svc".try_into().unwrap();
            verifier.verify_server_cert(&leaf, &[], &name, &[], UnixTime::since_unix_epoch(at)).is_ok()
        };
        assert!(verify(&ca));
        assert!(!verify(&other));
    }

    #[test]
    fn a_certificate_ends_with_its_ca_and_a_short_one_begins_shortly_before() {
        let minute = SignedDuration::from_mins(1);
        let ca = authority(now(), minute * 10).unwrap();
        let leaf = leaf(&ca, &[], now(), minute * 60).unwrap();
        let [ca, leaf] = [&ca, &leaf].map(|it| facts(it.certificate.as_bytes()).unwrap());
        assert_eq!(leaf.not_after, ca.not_after);
        assert_eq!(ca.not_before, now() - minute);
        assert_ne!(ca.id, leaf.id);
    }

    #[test]
    fn what_is_no_certificate_is_an_error() {
        for text in ["", "no PEM", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"] {
            facts(text.as_bytes()).unwrap_err();
        }
    }
}
