//! HTTP to the ledger and the gateway. Both are reached by pod IP, so that they answer while the API server is
//! unavailable.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use dalsegno_protocol::Problem;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use serde::de::DeserializeOwned;
use ureq::tls::{Certificate, RootCerts, TlsConfig};
use ureq::unversioned::resolver::{ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::{DefaultConnector, NextTimeout};

use crate::Result;
use crate::route::{self, Route};

/// A response of any status.
#[derive(Clone, Debug)]
pub struct Response {
    /// The HTTP status.
    pub status: u16,
    /// The body.
    pub body: String,
}

impl Response {
    /// Reads the body as JSON. Fails if the status is not 2xx.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T> {
        anyhow::ensure!((200..300).contains(&self.status), "the response is {}: {}", self.status, self.body);
        serde_json::from_str(&self.body).with_context(|| format!("reading the response {}", self.body))
    }

    /// Reads the body as a problem document. Fails if it is none.
    pub fn problem(&self) -> Result<Problem> {
        let problem: Problem = serde_json::from_str(&self.body).with_context(|| {
            format!("the response {} is not a problem document: {}", self.status, self.body)
        })?;
        anyhow::ensure!(
            problem.status == self.status,
            "the status is {}, but the body has {problem:?}",
            self.status
        );
        Ok(problem)
    }
}

/// A client that follows this route, if there is one.
fn agent(route: Option<Route>) -> Result<ureq::Agent> {
    let config = ureq::Agent::config_builder()
        .http_status_as_error(false)
        .timeout_global(Some(Duration::from_secs(30)))
        .proxy(None);
    let Some(Route { address, ca }) = route else { return Ok(config.build().into()) };
    let certificates: Vec<_> = CertificateDer::pem_slice_iter(ca.unwrap_or_default().as_bytes())
        .map(|it| it.map(|der| Certificate::from_der(&der).to_owned()))
        .collect::<std::result::Result<_, _>>()
        .context("reading the CA")?;
    let tls = TlsConfig::builder()
        .root_certs(RootCerts::from(certificates.into_iter()))
        .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .build();
    let config = config.tls_config(tls).build();
    Ok(ureq::Agent::with_parts(config, DefaultConnector::default(), FixedResolver(address)))
}

/// Resolves every name to one address.
#[derive(Debug)]
struct FixedResolver(SocketAddr);

impl Resolver for FixedResolver {
    fn resolve(
        &self,
        _: &ureq::http::Uri,
        _: &ureq::config::Config,
        _: NextTimeout,
    ) -> std::result::Result<ResolvedSocketAddrs, ureq::Error> {
        let mut addresses = self.empty();
        addresses.push(self.0);
        Ok(addresses)
    }
}

/// One request.
#[derive(Clone, Debug)]
pub struct Request {
    /// `GET` or `POST`.
    pub method: ureq::http::Method,
    /// The URL.
    pub url: String,
    /// The bearer token, if there is one.
    pub bearer: Option<String>,
    /// The body, sent as `application/json`.
    pub body: Vec<u8>,
}

impl Request {
    /// A GET request.
    pub fn get(url: impl Into<String>) -> Self {
        Self { method: ureq::http::Method::GET, url: url.into(), bearer: None, body: Vec::new() }
    }

    /// A POST request.
    pub fn post(url: impl Into<String>, body: impl Into<Vec<u8>>) -> Self {
        Self { method: ureq::http::Method::POST, url: url.into(), bearer: None, body: body.into() }
    }

    /// Sets the bearer token.
    pub fn bearer(mut self, bearer: impl Into<String>) -> Self {
        self.bearer = Some(bearer.into());
        self
    }

    /// Sends the request once, with a timeout of 30 s.
    pub async fn send(self) -> Result<Response> {
        tokio::task::spawn_blocking(move || self.send_blocking()).await?
    }

    fn send_blocking(self) -> Result<Response> {
        let agent = agent(route::to(&self.url))?;
        let mut request = ureq::http::Request::builder()
            .method(self.method)
            .uri(&self.url)
            .header("content-type", "application/json");
        if let Some(bearer) = self.bearer {
            request = request.header("authorization", format!("Bearer {bearer}"));
        }
        let mut response =
            agent.run(request.body(self.body)?).with_context(|| format!("requesting {}", self.url))?;
        Ok(Response { status: response.status().as_u16(), body: response.body_mut().read_to_string()? })
    }
}
