//! The templates that pods are created from.
//!
//! A document is a template together with the declared agent version. A revision is the hash of a document. The store
//! keeps a document as long as a run may be pinned to it.

use dalsegno_crds::{Agent, PodTemplate};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};

/// A template and its declared agent version.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Document {
    /// The declared agent version, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent_version: Option<String>,
    /// Name of the worker's image in the definition, if this document names the image by digest instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_name: Option<String>,
    /// The pod template.
    pub template: PodTemplate,
}

impl Document {
    /// The document of an agent's current template.
    pub fn of(agent: &Agent) -> Self {
        let agent_version = agent.agent_version.clone();
        Self { agent_version, image_name: None, template: agent.template.clone() }
    }

    /// The document as JSON. Equal documents have equal texts, because the keys of objects are sorted.
    pub fn text(&self) -> String {
        serde_json::to_value(self).map(|value| value.to_string()).unwrap_or_default()
    }

    /// The revision: `sha256:…` of the document's text.
    pub fn hash(&self) -> String {
        hash_of(&self.text())
    }

    /// Parses a stored document.
    ///
    /// # Errors
    ///
    /// The text is not a document in JSON.
    pub fn parse(text: &str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(text)
    }

    /// The worker's container: the one named `agent`, or the only one.
    fn worker(&mut self) -> Option<&mut Value> {
        let containers = self.template.0.get_mut("spec")?.get_mut("containers")?.as_array_mut()?;
        let only = containers.len() == 1;
        containers.iter_mut().find(|it| only || it["name"] == dalsegno_crds::names::WORKER_CONTAINER)
    }

    /// Name of the worker's image in the template.
    pub fn image(&self) -> Option<String> {
        self.clone().worker()?.get("image")?.as_str().map(str::to_owned)
    }

    /// Name of the worker's image in the definition that this document comes from.
    pub fn image_name(&self) -> Option<String> {
        self.image_name.clone().or_else(|| self.image())
    }

    /// The same template with the worker's image named by `digest`. Resources and placement come from `current`, so
    /// that a run that ran out of memory gets a raised limit.
    pub fn pinned(mut self, digest: &str, current: &Self) -> Self {
        if let Some(name) = self.image_name() {
            let by_digest = format!("{}@{digest}", repository(&name));
            self.image_name = Some(name).filter(|name| *name != by_digest);
            self.set_image(by_digest);
        }
        self.with_resources_and_placement(current)
    }

    /// The same template with the worker's image named as in the definition. Resources and placement come from `current`.
    pub fn unpinned(mut self, current: &Self) -> Self {
        if let Some(name) = self.image_name.take() {
            self.set_image(name);
        }
        self.with_resources_and_placement(current)
    }

    fn set_image(&mut self, name: String) {
        if let Some(worker) = self.worker() {
            worker["image"] = name.into();
        }
    }

    fn with_resources_and_placement(mut self, current: &Self) -> Self {
        let (Some(current), Some(pinned)) = (current.template.0.get("spec"), self.template.0.get_mut("spec"))
        else {
            return self;
        };
        for list in ["containers", "initContainers"] {
            let containers = current.get(list).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
            for container in pinned.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
                if let Some(same) = containers.iter().find(|it| it["name"] == container["name"]) {
                    copy_field(same, container, "resources");
                }
            }
        }
        for field in PLACEMENT_FIELDS {
            copy_field(current, pinned, field);
        }
        self
    }
}

/// Fields of a pod's spec that say where the pod may run. A pinned template takes them from the current one.
const PLACEMENT_FIELDS: [&str; 7] = [
    "nodeSelector",
    "affinity",
    "tolerations",
    "topologySpreadConstraints",
    "priorityClassName",
    "runtimeClassName",
    "schedulerName",
];

/// Sets a field to its value in another object, or removes it if it is not set there.
fn copy_field(from: &Value, to: &mut Value, field: &str) {
    let Some(to) = to.as_object_mut() else { return };
    match from.get(field) {
        Some(value) => to.insert(field.to_owned(), value.clone()),
        None => to.remove(field),
    };
}

/// The hash of a text as `sha256:…`.
pub fn hash_of(text: &str) -> String {
    let digest = Sha256::digest(text.as_bytes());
    let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex}")
}

/// The digest of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageDigest<'a> {
    /// `sha256:…`.
    pub digest: &'a str,
    /// Whether a registry knows the image by this digest: it is named as `repository@sha256:…`. The kubelet shows the
    /// image that was loaded onto a node by the digest of its configuration alone.
    pub in_registry: bool,
}

impl<'a> ImageDigest<'a> {
    /// The digest in the name of an image or in a pod's `imageID`, if there is a complete one.
    pub fn of(image: &'a str) -> Option<Self> {
        let (repository, digest) = image.split_at(image.rfind("sha256:")?);
        let hex = &digest["sha256:".len()..];
        let is_complete = hex.len() == 64 && hex.bytes().all(|it| it.is_ascii_hexdigit());
        let in_registry = repository.strip_suffix('@').is_some_and(|it| !it.is_empty());
        is_complete.then_some(Self { digest, in_registry })
    }
}

/// The name of an image without its tag and digest.
fn repository(image: &str) -> &str {
    let name = image.split('@').next().unwrap_or(image);
    match name.rfind(':') {
        // A colon before the last slash belongs to the registry's port.
        Some(colon) if !name[colon..].contains('/') => &name[..colon],
        _ => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parsed_document_has_the_same_revision() {
        for number in ["1", "0.1", "1e300", "5.0E-324", "123456789.12345678901234567890", &"5".repeat(50)] {
            let text = format!(r#"{{"template":{{"spec":{{"number":{number}}}}}}}"#);
            let document = Document::parse(&text).unwrap();
            assert_eq!(Document::parse(&document.text()).unwrap().hash(), document.hash(), "{number}");
        }
    }

    #[test]
    fn a_repository_is_the_image_name_without_tag_and_digest() {
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
    fn only_a_complete_sha256_is_a_digest_and_only_that_of_a_repository_is_in_a_registry() {
        let digest = format!("sha256:{}", "a".repeat(64));
        for (prefix, in_registry) in [
            ("docker.example/x@", true),
            ("docker.example:5000/x:1@", true),
            ("docker-pullable://x@", true),
            ("", false),
            ("docker://", false),
            ("@", false),
        ] {
            let image = format!("{prefix}{digest}");
            assert_eq!(
                ImageDigest::of(&image),
                Some(ImageDigest { digest: &digest, in_registry }),
                "{image}"
            );
        }
        assert_eq!(ImageDigest::of("x@sha256:abc"), None);
        assert_eq!(ImageDigest::of("x:1"), None);
    }
}
