//! The Lease of another process, judged by this process's own clock.
//!
//! The crate compares the time of renewal, which the other process wrote by its clock, with this process's clock. With
//! clocks that differ by more than a few seconds a standby would take over a Lease that is being renewed. So the client
//! shows each renewal of another process at the time when this process first saw it, as client-go does.

use std::sync::{Arc, Mutex};

use axum::http::{Method, Request, Response, header};
use jiff::Timestamp;
use kube::Client;
use kube::client::Body;
use serde_json::Value;
use tower::{BoxError, service_fn};

use crate::mutex::lock;

/// The last renewal of another process: who renewed, the time that it wrote, and when this process first saw that.
#[derive(Debug, Default)]
struct SeenRenewal(Option<(Value, Value, Timestamp)>);

/// A client for the Lease alone. `identity`: name of this process in the Lease.
pub fn by_own_clock(client: Client, identity: &str) -> Client {
    let (namespace, identity) = (client.default_namespace().to_owned(), identity.to_owned());
    let seen = Arc::new(Mutex::new(SeenRenewal::default()));
    let service = service_fn(move |request: Request<Body>| {
        let (client, seen, identity) = (client.clone(), seen.clone(), identity.clone());
        async move {
            let is_read = request.method() == Method::GET;
            let response = client.send(request).await?;
            if !is_read || !response.status().is_success() {
                return Ok::<_, BoxError>(response);
            }
            let (mut head, body) = response.into_parts();
            let body = body.collect_bytes().await?.to_vec();
            let shown = lock(&seen).show(&body, &identity, Timestamp::now());
            head.headers.remove(header::CONTENT_LENGTH);
            Ok(Response::from_parts(head, Body::from(shown.unwrap_or(body))))
        }
    });
    Client::new(service, namespace)
}

impl SeenRenewal {
    /// The Lease with the time at which its renewal was first seen. `None`: it is no Lease of another process.
    fn show(&mut self, lease: &[u8], identity: &str, now: Timestamp) -> Option<Vec<u8>> {
        let mut lease: Value = serde_json::from_slice(lease).ok()?;
        let spec = lease.get_mut("spec")?;
        let (holder, renewed) = (spec["holderIdentity"].clone(), spec["renewTime"].clone());
        if holder.is_null() || renewed.is_null() || holder == identity {
            return None;
        }
        let before = self.0.take().filter(|(by, at, _)| (by, at) == (&holder, &renewed));
        let (.., first_seen) = self.0.insert(before.unwrap_or((holder, renewed, now)));
        spec["renewTime"] = first_seen.to_string().into();
        serde_json::to_vec(&lease).ok()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a panic fails the test")]

    use serde_json::json;

    use super::*;

    #[test]
    fn a_renewal_of_another_process_has_the_time_at_which_it_was_first_seen() {
        let mut seen = SeenRenewal::default();
        let at = |second: i64| Timestamp::from_second(second).unwrap();
        let mut show = |holder: Option<&str>, renewed: i64, now: i64| {
            let lease = json!({ "spec": { "holderIdentity": holder, "renewTime": at(renewed).to_string() } });
            let shown = seen.show(lease.to_string().as_bytes(), "ours", at(now))?;
            let shown: Value = serde_json::from_slice(&shown).unwrap();
            Some(shown["spec"]["renewTime"].as_str().unwrap().parse::<Timestamp>().unwrap().as_second())
        };
        // Its clock is an hour behind.
        assert_eq!(
            [100, 102, 104].map(|now| show(Some("other"), now - 3_600, now)),
            [100, 102, 104].map(Some)
        );
        assert_eq!(
            [106, 119].map(|now| show(Some("other"), 104 - 3_600, now)),
            [Some(104); 2],
            "it has stopped"
        );
        assert_eq!(show(Some("third"), 104 - 3_600, 120), Some(120), "another process");
        assert_eq!((show(Some("ours"), 50, 121), show(None, 50, 121)), (None, None));
    }
}
