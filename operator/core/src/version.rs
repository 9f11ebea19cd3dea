//! Which template the next attempt uses, and whether its image may resume the checkpoint.
//!
//! The agent version is checked twice. *Before the pod is created*, [`choose_template`] checks what is known of the
//! template against the fenced head. *Before the worker attaches*, [`check_image`] checks the actual image. So a tag
//! that was pushed again is detected like an edited definition.

use std::collections::BTreeMap;

use dalsegno_crds::{Agent, Cause, OnMismatch};
use dalsegno_model::{HeadRow, Identity, RunRecord, Verdict};

use crate::revision::{Document, digest_in};

/// Stored templates that were read, by their hash. `None` means that the store does not have the template.
pub type Templates = BTreeMap<String, Option<String>>;

/// The choice of a template for the next attempt.
#[derive(Clone, Debug, PartialEq)]
pub enum Choice {
    /// Use this template.
    Use(ChosenTemplate),
    /// The stored template with this hash must be read first.
    NeedsTemplate(String),
    /// No template fits. A person must act. Holds a message that names both versions.
    Blocked(String),
}

/// The template of the next attempt.
#[derive(Clone, Debug, PartialEq)]
pub struct ChosenTemplate {
    /// The template.
    pub document: Document,
    /// Whether it is the template that committed the head, with its image named by digest, and not the current
    /// template.
    pub pinned: bool,
}

impl ChosenTemplate {
    /// The definition's current template.
    pub fn current(document: Document) -> Self {
        Self { document, pinned: false }
    }
}

/// Chooses the template of the next attempt.
///
/// The current template is used if its version is the checkpoint's, if `compatibleWith` lists the checkpoint's version,
/// or if its version is not known yet. Otherwise the policy decides.
pub fn choose_template(run: &RunRecord, agent: &Agent, policy: OnMismatch, stored: &Templates) -> Choice {
    let current = Document::of(agent);
    let Some((head, checkpoint)) = checkpoint_version(run) else {
        return Choice::Use(ChosenTemplate::current(current));
    };
    let Some(version) = known_version(run, &current) else {
        return Choice::Use(ChosenTemplate::current(current));
    };
    if version == checkpoint.agent_version || is_listed(&agent.compatible_with, checkpoint) {
        return Choice::Use(ChosenTemplate::current(current));
    }
    let mismatch = format!(
        "the checkpoint of turn {} was written by agent version {}, and the deployed version is {version}",
        head.turn, checkpoint.agent_version
    );
    match policy {
        OnMismatch::Allow => Choice::Use(ChosenTemplate::current(current)),
        OnMismatch::Block => Choice::Blocked(mismatch),
        OnMismatch::Pin => pin(head, checkpoint, &current, stored).unwrap_or_else(|| {
            Choice::Blocked(format!("{mismatch}; the template that wrote the checkpoint is not in the store"))
        }),
    }
}

/// The template that committed the head, or `None` if the store does not have it.
fn pin(head: &HeadRow, checkpoint: &Identity, current: &Document, stored: &Templates) -> Option<Choice> {
    let wanted = head.revision.as_ref().filter(|it| !it.is_empty())?;
    let Some(read) = stored.get(wanted) else {
        return Some(Choice::NeedsTemplate(wanted.clone()));
    };
    let document = Document::parse(read.as_deref()?).ok()?.pinned(&checkpoint.image_digest, current);
    Some(Choice::Use(ChosenTemplate { document, pinned: true }))
}

/// The image of a worker.
#[derive(Clone, Copy, Debug)]
pub struct WorkerImage<'a> {
    /// The version that the pod's own template declares, if it declares one.
    pub declared_version: Option<&'a str>,
    /// Digest of the image, from its name or as the kubelet reports it.
    pub digest: &'a str,
}

/// Checks whether the image of the current attempt's pod may resume the checkpoint. Returns `None` if the result
/// depends on the AgentDefinition and that is missing.
pub fn check_image(
    run: &RunRecord,
    agent: Option<&Agent>,
    policy: OnMismatch,
    image: WorkerImage<'_>,
) -> Option<Identity> {
    let version = image.declared_version.unwrap_or(image.digest);
    let with = |verdict, remark: String| Identity {
        image_digest: image.digest.to_owned(),
        agent_version: version.to_owned(),
        verdict,
        remark,
    };
    let Some((head, checkpoint)) =
        checkpoint_version(run).filter(|(_, checkpoint)| checkpoint.agent_version != version)
    else {
        return Some(with(Verdict::Accepted, String::new()));
    };
    let before = &checkpoint.agent_version;
    if is_listed(&agent?.compatible_with, checkpoint) {
        return Some(with(Verdict::Accepted, format!("{version} is listed as compatible with {before}")));
    }
    let mismatch = format!(
        "the checkpoint of turn {} was written by agent version {before}, and this worker is version {version}",
        head.turn
    );
    Some(match policy {
        OnMismatch::Allow => with(Verdict::Allowed, format!("{mismatch}; versionPolicy.onMismatch is Allow")),
        OnMismatch::Pin | OnMismatch::Block => with(Verdict::Refused, mismatch),
    })
}

/// The head, and the identity of the agent that committed it.
fn checkpoint_version(run: &RunRecord) -> Option<(&HeadRow, &Identity)> {
    let head = run.head.as_ref()?;
    Some((head, head.identity.as_ref()?))
}

fn is_listed(compatible_with: &[String], checkpoint: &Identity) -> bool {
    compatible_with.contains(&checkpoint.agent_version)
}

/// The version of the current template, as far as it is known before a pod runs: the declared version, or else the
/// digest in the image's name, or else the version of the latest attempt with this template, if it was refused.
fn known_version(run: &RunRecord, current: &Document) -> Option<String> {
    if let Some(declared) = &current.agent_version {
        return Some(declared.clone());
    }
    if let Some(digest) = current.image().as_deref().and_then(digest_in) {
        return Some(digest.to_owned());
    }
    let revision = current.hash();
    let latest = run
        .past
        .iter()
        .filter(|it| it.number > run.reset_attempt)
        .find(|it| it.revision.as_deref() == Some(&revision) && it.identity.is_some())?;
    // Only a refusal counts: after an accepted version, the tag may have been pushed again.
    let refused = latest.end.as_ref().is_some_and(|end| end.cause == Cause::VersionIncompatible);
    latest.identity.as_ref().filter(|_| refused).map(|it| it.agent_version.clone())
}
