//! Under which template a run goes on, and whether it may under this image.
//!
//! The agent's version is checked twice. *Before the pod*, on the fenced head, by what is known of the template:
//! [`choose`]. *At attach*, where the image is certain: [`judge`]. A tag that was pushed again is thereby caught like
//! an edited definition.

use std::collections::BTreeMap;

use dalsegno_crds::{Agent, Cause, OnMismatch};
use dalsegno_model::{HeadRow, Identity, RunRecord, Verdict};

use crate::revision::{Document, digest_in};

/// Stored templates that were read, by their hash; `None` is one that the store does not have.
pub type Templates = BTreeMap<String, Option<String>>;

/// The template of the next attempt.
#[derive(Clone, Debug, PartialEq)]
pub enum Choice {
    /// The current one.
    Current(Document),
    /// The one that committed the head, its image by digest.
    Pinned(Document),
    /// The stored template with this hash must be read to tell.
    Needs(String),
    /// None: a person must decide. Names both versions.
    Blocked(String),
}

/// Which template the next attempt is made of.
///
/// The current one if its version is the checkpoint's, or `compatibleWith` lists the checkpoint's, or nothing is
/// known of it yet; else the policy decides.
pub fn choose(run: &RunRecord, agent: &Agent, policy: OnMismatch, stored: &Templates) -> Choice {
    let current = Document::of(agent);
    let Some((head, checkpoint)) = checkpoint_version(run) else {
        return Choice::Current(current);
    };
    let Some(version) = known_version(run, &current) else {
        return Choice::Current(current);
    };
    if version == checkpoint.agent_version || is_listed(&agent.compatible_with, checkpoint) {
        return Choice::Current(current);
    }
    let mismatch = format!(
        "the checkpoint of turn {} was written by agent version {}, the deployed image is {version}",
        head.turn, checkpoint.agent_version
    );
    match policy {
        OnMismatch::Allow => Choice::Current(current),
        OnMismatch::Block => Choice::Blocked(mismatch),
        OnMismatch::Pin => pin(head, checkpoint, &current, stored).unwrap_or_else(|| {
            Choice::Blocked(format!("{mismatch}, and the template that wrote it is not in the store"))
        }),
    }
}

/// The template that committed the head; `None` if it is lost.
fn pin(head: &HeadRow, checkpoint: &Identity, current: &Document, stored: &Templates) -> Option<Choice> {
    let wanted = head.revision.as_ref().filter(|it| !it.is_empty())?;
    let Some(read) = stored.get(wanted) else {
        return Some(Choice::Needs(wanted.clone()));
    };
    let document = Document::parse(read.as_deref()?).ok()?;
    Some(Choice::Pinned(document.pinned(&checkpoint.image_digest, current)))
}

/// Whether the run may go on under the image of the current attempt's pod; `None` if that cannot be told, since its
/// AgentDefinition is not there.
///
/// `declared` is the version that the pod's own template declares, `digest` the image's, observed or named.
pub fn judge(
    run: &RunRecord,
    agent: Option<&Agent>,
    policy: OnMismatch,
    declared: Option<&str>,
    digest: &str,
) -> Option<Identity> {
    let version = declared.unwrap_or(digest);
    let with = |verdict, remark: String| Identity {
        image_digest: digest.to_owned(),
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
        "the checkpoint of turn {} was written by agent version {before}, this worker is {version}",
        head.turn
    );
    Some(match policy {
        OnMismatch::Allow => with(Verdict::Allowed, format!("{mismatch}; versionPolicy.onMismatch is Allow")),
        OnMismatch::Pin | OnMismatch::Block => with(Verdict::Refused, mismatch),
    })
}

/// The head and the agent that committed it.
fn checkpoint_version(run: &RunRecord) -> Option<(&HeadRow, &Identity)> {
    let head = run.head.as_ref()?;
    Some((head, head.identity.as_ref()?))
}

fn is_listed(compatible_with: &[String], checkpoint: &Identity) -> bool {
    compatible_with.contains(&checkpoint.agent_version)
}

/// What is known of the current template's version before a pod of it runs: the declared one, else the digest by
/// which the image is named, else what the latest attempt of this very template turned out to be.
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
    // A tag may have been pushed again since; only a refusal is fresh enough to be believed.
    let refused = latest.end.as_ref().is_some_and(|end| end.cause == Cause::VersionIncompatible);
    latest.identity.as_ref().filter(|_| refused).map(|it| it.agent_version.clone())
}
