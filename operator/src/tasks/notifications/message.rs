//! What is sent: a CloudEvent, and its signature after Standard Webhooks.
//!
//! The body holds ids, the kind, a deadline and the command to type. It never holds a title, a summary or a reason: the
//! receiver may be a chat that many people read.

use anyhow::{Context as _, bail, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use dalsegno_core::text::shell_quoted;
use dalsegno_model::{Notification, NotificationDetail, NotificationKind};
use jiff::Timestamp;
use ring::hmac;
use serde_json::{Value, json};
use uuid::Uuid;

/// Begins a secret, as Standard Webhooks writes it. What follows is base64.
const SECRET_PREFIX: &str = "whsec_";

/// Lengths of a secret in bytes that Standard Webhooks allows.
const SECRET_BYTES: std::ops::RangeInclusive<usize> = 24..=64;

/// The secrets that sign. More than one only while a secret is replaced: then a message has a signature of each.
#[derive(Clone)]
pub struct Secrets(Vec<Vec<u8>>);

impl Secrets {
    /// Parses secrets, one a line.
    ///
    /// # Errors
    ///
    /// There is none, or one is not written as `whsec_` and 24 to 64 bytes in base64.
    pub fn parse(text: &str) -> anyhow::Result<Self> {
        let secrets: Vec<_> = text.split_whitespace().map(parse_secret).collect::<anyhow::Result<_>>()?;
        ensure!(!secrets.is_empty(), "there is no secret");
        Ok(Self(secrets))
    }

    /// The header `webhook-signature`.
    pub fn sign(&self, id: Uuid, timestamp: i64, body: &str) -> String {
        let signed = format!("{id}.{timestamp}.{body}");
        let one = |secret: &Vec<u8>| format!("v1,{}", STANDARD.encode(hmac_of(secret, signed.as_bytes())));
        self.0.iter().map(one).collect::<Vec<_>>().join(" ")
    }
}

fn parse_secret(text: &str) -> anyhow::Result<Vec<u8>> {
    let Some(encoded) = text.strip_prefix(SECRET_PREFIX) else {
        bail!("a secret begins with {SECRET_PREFIX}")
    };
    // The secret itself is in no error.
    let secret = STANDARD.decode(encoded).ok().context("a secret is not base64")?;
    ensure!(SECRET_BYTES.contains(&secret.len()), "a secret has 24 to 64 bytes");
    Ok(secret)
}

fn hmac_of(secret: &[u8], signed: &[u8]) -> Vec<u8> {
    hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret), signed).as_ref().to_vec()
}

/// The CloudEvent, as JSON.
pub fn body(notification: &Notification, store_id: Uuid) -> String {
    let Notification { id, run, namespace, name, object_uid, kind, detail, created_at, tries: _ } =
        notification;
    let NotificationDetail { attempt, limit, wait_id, deadline, object: _ } = detail;
    let mut data = json!({
        "kind": kind, "namespace": namespace, "name": name, "uid": object_uid, "command": command(notification),
    });
    let more: [(&str, Option<Value>); 5] = [
        ("runID", run.map(|it| it.to_string().into())),
        ("attempt", attempt.map(Value::from)),
        ("limit", limit.map(|it| it.as_str().into())),
        ("waitID", wait_id.as_deref().map(Value::from)),
        ("deadline", deadline.map(rfc3339)),
    ];
    for (field, value) in more {
        if let Some(value) = value {
            data[field] = value;
        }
    }
    let event = json!({
        "specversion": "1.0", "id": id, "source": format!("urn:dalsegno:store:{store_id}"), "type": event_type(*kind),
        "subject": format!("{namespace}/{name}"), "time": rfc3339(*created_at), "datacontenttype": "application/json",
        "data": data,
    });
    event.to_string()
}

fn rfc3339(at: Timestamp) -> Value {
    at.to_string().into()
}

/// The type of the CloudEvent.
fn event_type(kind: NotificationKind) -> &'static str {
    match kind {
        NotificationKind::ApprovalRequested => "dev.dalsegno.approval.requested",
        NotificationKind::RunHeld => "dev.dalsegno.run.held",
        NotificationKind::RunFailed => "dev.dalsegno.run.failed",
        NotificationKind::LimitNear => "dev.dalsegno.run.limit-near",
    }
}

/// The command that shows a person what to do.
fn command(notification: &Notification) -> String {
    let Notification { namespace, name, kind, .. } = notification;
    let (namespace, name) = (shell_quoted(namespace), shell_quoted(name));
    let field = match kind {
        NotificationKind::ApprovalRequested => {
            return format!("kubectl get agentapprovals --namespace {namespace}");
        }
        NotificationKind::RunHeld => r#"{.status.conditions[?(@.type=="Held")].message}"#,
        NotificationKind::RunFailed => "{.status.result}",
        NotificationKind::LimitNear => "{.status.limits}",
    };
    format!("kubectl get agentrun {name} --namespace {namespace} --output jsonpath='{field}'")
}

#[cfg(test)]
mod tests {
    use dalsegno_model::LimitName;

    use super::*;

    fn notification(kind: NotificationKind, detail: NotificationDetail) -> Notification {
        Notification {
            id: Uuid::from_u128(1),
            run: Some(Uuid::from_u128(2)),
            namespace: "shop".into(),
            name: "nightly".into(),
            object_uid: "0a1b".into(),
            kind,
            detail,
            created_at: Timestamp::from_second(1_767_225_600).unwrap(),
            tries: 3,
        }
    }

    #[test]
    fn the_body_is_a_cloud_event_with_ids_and_a_command() {
        let detail = NotificationDetail { attempt: Some(4), ..NotificationDetail::default() };
        let body = body(&notification(NotificationKind::RunHeld, detail), Uuid::from_u128(3));
        let expected = json!({
            "specversion": "1.0",
            "id": "00000000-0000-0000-0000-000000000001",
            "source": "urn:dalsegno:store:00000000-0000-0000-0000-000000000003",
            "type": "dev.dalsegno.run.held",
            "subject": "shop/nightly",
            "time": "2026-01-01T00:00:00Z",
            "datacontenttype": "application/json",
            "data": {
                "kind": "RunHeld", "namespace": "shop", "name": "nightly", "uid": "0a1b", "attempt": 4,
                "runID": "00000000-0000-0000-0000-000000000002",
                "command": "kubectl get agentrun nightly --namespace shop --output \
                            jsonpath='{.status.conditions[?(@.type==\"Held\")].message}'",
            },
        });
        assert_eq!(serde_json::from_str::<Value>(&body).unwrap(), expected);
    }

    #[test]
    fn of_an_object_without_a_run_the_body_has_no_id_of_a_run() {
        let held = Notification {
            run: None,
            ..notification(NotificationKind::RunHeld, NotificationDetail::default())
        };
        let body: Value = serde_json::from_str(&body(&held, Uuid::nil())).unwrap();
        assert_eq!((body["data"].get("runID"), &body["data"]["uid"]), (None, &"0a1b".into()));
    }

    #[test]
    fn each_kind_has_a_type_and_a_command_of_its_own() {
        let detail = NotificationDetail {
            limit: Some(LimitName::CostMicroUsd),
            wait_id: Some("pay".into()),
            deadline: Some(Timestamp::UNIX_EPOCH),
            ..NotificationDetail::default()
        };
        let bodies = NotificationKind::ALL.iter().map(|kind| {
            let body = body(&notification(*kind, detail.clone()), Uuid::nil());
            serde_json::from_str::<Value>(&body).unwrap()
        });
        let bodies: Vec<Value> = bodies.collect();
        let unique = |field: &str| {
            let values = bodies.iter().map(|it| it.pointer(field).unwrap().as_str().unwrap().to_owned());
            values.collect::<std::collections::BTreeSet<_>>().len()
        };
        assert_eq!((unique("/type"), unique("/data/command")), (bodies.len(), bodies.len()));
        let data = &bodies[0]["data"];
        assert_eq!((&data["waitID"], &data["limit"]), (&"pay".into(), &"costMicroUSD".into()));
        assert_eq!(data["deadline"], "1970-01-01T00:00:00Z");
    }

    #[test]
    fn a_signature_is_the_one_of_the_specification() {
        // The example of https://www.standardwebhooks.com.
        let secrets = Secrets::parse("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        let key = STANDARD.decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        let signed = br#"msg_p5jXN8AQM9LWM0D4loKWxJek.1614265330.{"test": 2432232314}"#;
        assert_eq!(STANDARD.encode(hmac_of(&key, signed)), "g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
        let signature = secrets.sign(Uuid::nil(), 1, "{}");
        assert_eq!(signature.split_once(',').map(|(version, _)| version), Some("v1"));
    }

    #[test]
    fn while_a_secret_is_replaced_both_sign() {
        let one = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
        let other = format!("{SECRET_PREFIX}{}", STANDARD.encode([7; 32]));
        let sign = |text: &str| Secrets::parse(text).unwrap().sign(Uuid::nil(), 1, "{}");
        assert_eq!(sign(&format!("{one}\n{other}\n")), format!("{} {}", sign(one), sign(&other)));
    }

    #[test]
    fn a_secret_that_is_no_secret_is_an_error_that_does_not_show_it() {
        for text in ["", " \n", "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_***", "whsec_AAAA"] {
            let Err(error) = Secrets::parse(text) else { panic!("{text:?} is accepted") };
            assert!(!error.to_string().contains("AAAA"), "{error}");
        }
    }
}
