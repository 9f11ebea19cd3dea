//! Which template the next attempt uses, and whether its image may resume the checkpoint.
//!
//! The agent version is checked twice. *Before the pod is created*, [`choose_template`] checks what is known of the
//! template against the fenced head. *Before the worker attaches*, [`check_image`] checks the actual image. So a tag
//! that was pushed again is detected like an edited definition.

use std::collections::BTreeMap;

use dalsegno_crds::{Agent, Cause, OnMismatch};
use dalsegno_model::{Attempt, Identity, RunRecord, Verdict};

use crate::revision::{Document, ImageDigest};

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
    /// Whether it is the template that committed the head, usually with its image named by digest, and not the current
    /// template.
    pub pinned: bool,
}

impl ChosenTemplate {
    /// The definition's current template.
    pub fn current(document: Document) -> Self {
        Self { document, pinned: false }
    }

    /// The template that committed the head.
    fn pinned(document: Document) -> Self {
        Self { document, pinned: true }
    }
}

/// Chooses the template of the next attempt.
///
/// The current template is used if its version is the checkpoint's, if `compatibleWith` lists the checkpoint's version,
/// or if its version is not known yet. Otherwise the policy decides.
///
/// The policy `Pin` also protects the run from a bad roll-out. It uses the template that committed the head instead of a
/// current template that failed to start, or whose image has another name and a version that is not known yet.
pub fn choose_template(run: &RunRecord, agent: &Agent, policy: OnMismatch, stored: &Templates) -> Choice {
    let current = Document::of(agent);
    let Some(written) = last_written(run) else {
        return Choice::Use(ChosenTemplate::current(current));
    };
    let checkpoint = written.identity;
    let version = known_version(run, &current);
    let is_listed = is_listed(&agent.compatible_with, checkpoint);
    let other = version.as_ref().filter(|it| **it != checkpoint.agent_version && !is_listed);
    let Some(version) = other else {
        let is_unknown = version.is_none() && !is_listed;
        return match policy {
            OnMismatch::Pin => avoid_bad_roll_out(run, current, is_unknown, stored),
            OnMismatch::Allow | OnMismatch::Block => Choice::Use(ChosenTemplate::current(current)),
        };
    };
    let mismatch = format!(
        "{} agent version {}, and the deployed version is {version} ({})",
        written.by,
        checkpoint.agent_version,
        both_versions(checkpoint, version)
    );
    match policy {
        OnMismatch::Allow => Choice::Use(ChosenTemplate::current(current)),
        OnMismatch::Block => Choice::Blocked(mismatch),
        OnMismatch::Pin => match recorded_template(&written, stored) {
            Recorded::Unread(revision) => Choice::NeedsTemplate(revision),
            Recorded::Missing => Choice::Blocked(format!(
                "{mismatch}; the template that wrote the checkpoint is not in the store"
            )),
            Recorded::Found(recorded) => match pin(run, recorded, checkpoint, &current) {
                Some(template) => Choice::Use(template),
                None => Choice::Blocked(format!(
                    "{mismatch}; the image that wrote the checkpoint has the same name, and no registry knows its digest"
                )),
            },
        },
    }
}

/// Chooses between a current template whose version may resume the checkpoint, as far as it is known, and the template
/// that committed the head. `is_unknown`: the version of the current template is not known.
fn avoid_bad_roll_out(run: &RunRecord, current: Document, is_unknown: bool, stored: &Templates) -> Choice {
    let revision = current.hash();
    let failed = failed_to_start(run, &revision);
    let use_current = |current| Choice::Use(ChosenTemplate::current(current));
    let Some(written) = last_written(run) else { return use_current(current) };
    let checkpoint = written.identity;
    if !failed && (!is_unknown || written.revision == Some(&revision)) {
        return use_current(current);
    }
    match recorded_template(&written, stored) {
        Recorded::Unread(revision) => Choice::NeedsTemplate(revision),
        Recorded::Missing => use_current(current),
        Recorded::Found(recorded) if !failed && recorded.image_name() == current.image_name() => {
            use_current(current)
        }
        Recorded::Found(recorded) => Choice::Use(
            pin(run, recorded, checkpoint, &current).unwrap_or_else(|| ChosenTemplate::current(current)),
        ),
    }
}

/// The template that committed the head.
enum Recorded {
    /// It has this hash and must be read first.
    Unread(String),
    /// The store does not have it.
    Missing,
    Found(Document),
}

fn recorded_template(written: &LastWritten<'_>, stored: &Templates) -> Recorded {
    let Some(wanted) = written.revision.filter(|it| !it.is_empty()) else { return Recorded::Missing };
    let Some(read) = stored.get(wanted) else { return Recorded::Unread(wanted.to_owned()) };
    let document = read.as_deref().and_then(|text| Document::parse(text).ok());
    document.map_or(Recorded::Missing, Recorded::Found)
}

/// The template that committed the head, with its image named by digest if a registry knows the digest. Otherwise, or if a
/// pod of that failed to start, with the image named as in the definition: no registry knows the digest of an image that
/// was loaded onto the nodes. `None`: that is the current template.
fn pin(
    run: &RunRecord,
    recorded: Document,
    checkpoint: &Identity,
    current: &Document,
) -> Option<ChosenTemplate> {
    let named = recorded.clone().unpinned(current);
    if checkpoint.in_registry == Some(false) {
        return Some(named).filter(|it| it.hash() != current.hash()).map(ChosenTemplate::pinned);
    }
    let by_digest = recorded.pinned(&checkpoint.image_digest, current);
    let use_name = failed_to_start(run, &by_digest.hash())
        && named.hash() != current.hash()
        && !failed_to_start(run, &named.hash());
    Some(ChosenTemplate::pinned(if use_name { named } else { by_digest }))
}

/// Whether the latest attempt with the template of this revision never attached, because it could not start.
fn failed_to_start(run: &RunRecord, revision: &str) -> bool {
    let mut counted = run.past.iter().filter(|it| it.number > run.reset_attempt);
    let latest = counted.find(|it| it.revision.as_deref() == Some(revision));
    let never_started =
        |cause| matches!(cause, Cause::ImageUnavailable | Cause::StartFailed | Cause::StartDeadline);
    latest.and_then(|it| it.end.as_ref()).is_some_and(|end| never_started(end.cause))
}

/// The image of a worker.
#[derive(Clone, Copy, Debug)]
pub struct WorkerImage<'a> {
    /// The version that the pod's own template declares, if it declares one.
    pub declared_version: Option<&'a str>,
    /// Digest of the image, from its name or as the kubelet reports it.
    pub digest: ImageDigest<'a>,
}

/// Checks whether the image of the current attempt's pod may resume the checkpoint. Returns `None` if the result
/// depends on the AgentDefinition and that is missing.
pub fn check_image(
    run: &RunRecord,
    agent: Option<&Agent>,
    policy: OnMismatch,
    image: WorkerImage<'_>,
) -> Option<Identity> {
    let ImageDigest { digest, in_registry } = image.digest;
    let version = image.declared_version.unwrap_or(digest);
    let with = |verdict, remark: String| Identity {
        image_digest: digest.to_owned(),
        in_registry: Some(in_registry),
        agent_version: version.to_owned(),
        verdict,
        remark,
    };
    let Some(written) = last_written(run).filter(|it| it.identity.agent_version != version) else {
        return Some(with(Verdict::Accepted, String::new()));
    };
    let checkpoint = written.identity;
    let before = &checkpoint.agent_version;
    if is_listed(&agent?.compatible_with, checkpoint) {
        let both = both_versions(checkpoint, version);
        let remark = format!("{version} is listed as compatible with {before} ({both})");
        return Some(with(Verdict::Accepted, remark));
    }
    let mismatch = format!(
        "{} agent version {before}, and this worker is version {version} ({})",
        written.by,
        both_versions(checkpoint, version)
    );
    Some(match policy {
        OnMismatch::Allow => with(Verdict::Allowed, format!("{mismatch}; versionPolicy.onMismatch is Allow")),
        OnMismatch::Pin | OnMismatch::Block => with(Verdict::Refused, mismatch),
    })
}

/// Both versions, for programs that read a condition's message or a worker's warning.
fn both_versions(checkpoint: &Identity, version: &str) -> String {
    format!("checkpointVersion={} imageVersion={version}", checkpoint.agent_version)
}

/// The agent that wrote the checkpoint.
pub(crate) struct LastWritten<'a> {
    /// The begin of a sentence that ends with its version.
    by: String,
    /// Hash of its template.
    pub revision: Option<&'a str>,
    identity: &'a Identity,
}

/// The agent that committed the head. An agent that keeps its own checkpoints may have written one in each attempt whose
/// worker started, and the last one counts.
pub(crate) fn last_written(run: &RunRecord) -> Option<LastWritten<'_>> {
    if run.is_external {
        let may_have_written =
            |it: &&Attempt| it.attached_at.is_some() && it.identity.is_some() && !was_refused(it);
        let attempt = run.past.iter().find(may_have_written)?;
        let by = format!("attempt {} had", attempt.number);
        let identity = attempt.identity.as_ref()?;
        return Some(LastWritten { by, revision: attempt.revision.as_deref(), identity });
    }
    let head = run.head.as_ref()?;
    let by = format!("the checkpoint of turn {} was written by", head.turn);
    Some(LastWritten { by, revision: head.revision.as_deref(), identity: head.identity.as_ref()? })
}

/// Whether the version of the attempt's image was refused, also if its end has another cause.
pub(crate) fn was_refused(attempt: &Attempt) -> bool {
    let is_refused = |it: &Identity| it.verdict == Verdict::Refused;
    attempt.identity.as_ref().is_some_and(is_refused)
        || attempt.end.as_ref().is_some_and(|end| end.cause == Cause::VersionIncompatible)
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
    if let Some(named) = current.image().as_deref().and_then(ImageDigest::of) {
        return Some(named.digest.to_owned());
    }
    let revision = current.hash();
    let latest = run
        .past
        .iter()
        .filter(|it| it.number > run.reset_attempt)
        .find(|it| it.revision.as_deref() == Some(&revision) && it.identity.is_some())?;
    // Only a refusal counts: after an accepted version, the tag may have been pushed again.
    latest.identity.as_ref().filter(|_| was_refused(latest)).map(|it| it.agent_version.clone())
}
