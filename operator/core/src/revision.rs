//! The templates that made pods.
//!
//! A revision is the hash of a document: the template together with the version that was declared beside it. It is
//! kept in the store while a run may have to go back to it.

use dalsegno_crds::{Agent, PodTemplate};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};

/// What makes a worker the one it is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Document {
    /// The declared version, where one is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent_version: Option<String>,
    /// The template.
    pub template: PodTemplate,
}

impl Document {
    /// Of an agent as it stands.
    pub fn of(agent: &Agent) -> Self {
        Self { agent_version: agent.agent_version.clone(), template: agent.template.clone() }
    }

    /// Its text; equal documents have equal texts, since JSON objects are kept ordered by key.
    pub fn text(&self) -> String {
        serde_json::to_value(self).map(|value| value.to_string()).unwrap_or_default()
    }

    /// The revision: `sha256:…` of its text.
    pub fn hash(&self) -> String {
        hash_of(&self.text())
    }

    /// Reads a stored document.
    pub fn parse(text: &str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(text)
    }

    /// The worker's container: the one named `agent`, or the only one.
    fn worker(&mut self) -> Option<&mut Value> {
        let containers = self.template.0.get_mut("spec")?.get_mut("containers")?.as_array_mut()?;
        let only = containers.len() == 1;
        containers.iter_mut().find(|it| only || it["name"] == dalsegno_crds::names::WORKER_CONTAINER)
    }

    /// The worker's image as the template names it.
    pub fn image(&self) -> Option<String> {
        self.clone().worker()?.get("image")?.as_str().map(str::to_owned)
    }

    /// The same agent with its image named by `digest`, and with the resources and the placement of `current`, so
    /// that more memory reaches a run that ran out of it.
    pub fn pinned(mut self, digest: &str, current: &Self) -> Self {
        if let Some(worker) = self.worker()
            && let Some(image) = worker.get("image").and_then(Value::as_str)
        {
            worker["image"] = format!("{}@{digest}", repository(image)).into();
        }
        let (Some(now), Some(then)) = (current.template.0.get("spec"), self.template.0.get_mut("spec"))
        else {
            return self;
        };
        for list in ["containers", "initContainers"] {
            let current = now.get(list).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
            for container in then.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
                if let Some(same) = current.iter().find(|it| it["name"] == container["name"]) {
                    carry(same, container, "resources");
                }
            }
        }
        for field in PLACEMENT {
            carry(now, then, field);
        }
        self
    }
}

/// Where a pod may run: follows the current template even when the rest is pinned.
const PLACEMENT: [&str; 7] = [
    "nodeSelector",
    "affinity",
    "tolerations",
    "topologySpreadConstraints",
    "priorityClassName",
    "runtimeClassName",
    "schedulerName",
];

fn carry(from: &Value, to: &mut Value, field: &str) {
    let Some(to) = to.as_object_mut() else { return };
    match from.get(field) {
        Some(value) => to.insert(field.to_owned(), value.clone()),
        None => to.remove(field),
    };
}

/// `sha256:…` of a text.
pub fn hash_of(text: &str) -> String {
    let digest = Sha256::digest(text.as_bytes());
    let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex}")
}

/// The digest by which an image is named, or that a pod's `imageID` shows; only the `sha256:` part counts.
pub fn digest_in(image: &str) -> Option<&str> {
    let from = image.rfind("sha256:")?;
    let hex = &image[from + "sha256:".len()..];
    (hex.len() == 64 && hex.bytes().all(|it| it.is_ascii_hexdigit())).then_some(&image[from..])
}

/// An image's name without tag and digest.
fn repository(image: &str) -> &str {
    let name = image.split('@').next().unwrap_or(image);
    match name.rfind(':') {
        // A colon before the last slash is a registry's port.
        Some(colon) if !name[colon..].contains('/') => &name[..colon],
        _ => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_that_is_kept_and_read_again_is_the_same_revision() {
        for number in ["1", "0.1", "1e300", "5.0E-324", "123456789.12345678901234567890", &"5".repeat(50)] {
            let text = format!(r#"{{"template":{{"spec":{{"number":{number}}}}}}}"#);
            let document = Document::parse(&text).unwrap();
            assert_eq!(Document::parse(&document.text()).unwrap().hash(), document.hash(), "{number}");
        }
    }

    #[test]
    fn a_repository_is_the_name_without_tag_and_digest() {
        for (image, name) in [
            ("agent", "agent"),
            ("agent:1", "agent"),
            ("host:5000/a/agent", "host:5000/a/agent"),
            ("host:5000/a/agent:1", "host:5000/a/agent"),
            ("host:5000/a/agent:1@sha256:00", "host:5000/a/agent"),
        ] {
            assert_eq!(repository(image), name, "{image}");
        }
    }

    #[test]
    fn only_a_whole_sha256_is_a_digest() {
        let hex = "a".repeat(64);
        assert_eq!(
            digest_in(&format!("docker.example/x@sha256:{hex}")),
            Some(format!("sha256:{hex}").as_str())
        );
        assert_eq!(digest_in(&format!("sha256:{hex}")), Some(format!("sha256:{hex}").as_str()));
        assert_eq!(digest_in("x@sha256:abc"), None);
        assert_eq!(digest_in("x:1"), None);
    }
}
