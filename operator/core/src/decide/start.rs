//! A start that is replaced: an attempt whose worker has not attached, and whose successor would use another template.
//!
//! # Invariants
//!
//! A start is replaced only if the successor gets another template. So no run replaces its pods for ever. Such an end is
//! not charged: the run did nothing yet.

use dalsegno_crds::{Agent, Cause, names};
use dalsegno_model::{Attempt, AttemptEnd, AttemptState, Class, NextStep};
use jiff::SignedDuration;

use super::plan::{Context, Plan};
use crate::decision::Effect;
use crate::end::End;
use crate::observed::ObservedPod;
use crate::pod::{self, annotation};
use crate::revision::Document;
use crate::text::{reason_and_message, with_log};
use crate::version::{self, Choice};

/// How long a container may wait for a repair, such as another try to pull its image, before the attempt falls back to the
/// template that wrote the checkpoint.
const REPAIR_TIME: SignedDuration = SignedDuration::from_secs(30);

/// The successor's template, compared with the current attempt's.
enum Successor {
    /// The same template.
    Same,
    /// Another template.
    Other,
    /// Not known yet: the stored template with this hash must be read first.
    Unknown(String),
}

/// Ends an attempt whose container could not be started. It is not charged if the next attempt has another template.
pub(super) fn end_failed_start(ctx: &Context<'_>, end: End) -> Plan {
    match after_failed_start(ctx) {
        Successor::Same => Plan::end(ctx.row, end, NextStep::Reserve),
        Successor::Other => fall_back(ctx, end),
        Successor::Unknown(revision) => Plan::act(Effect::ReadTemplate(revision)),
    }
}

/// Replaces the pod of a worker that has not attached, if its template is outdated or does not work. `waiting` is the plan
/// if the pod stays.
pub(super) fn replace_pod(ctx: &Context<'_>, seen: &ObservedPod, waiting: Plan) -> Plan {
    let Context { observed, row, .. } = *ctx;
    let Some(agent) = observed.agent().filter(|_| row.attempt.state == AttemptState::Created) else {
        return waiting;
    };
    match after_edit(ctx, seen, agent) {
        Successor::Same => {}
        Successor::Other => {
            let message = "the definition changed before the worker attached";
            let end = End::new(Cause::TemplateChanged, Class::Neutral, message);
            return Plan::end(row, end, NextStep::Reserve);
        }
        Successor::Unknown(revision) => return Plan::act(Effect::ReadTemplate(revision)),
    }
    let Some((reason, message)) = pod::waiting(&seen.pod) else { return waiting };
    match after_failed_start(ctx) {
        Successor::Same => waiting,
        Successor::Unknown(revision) => Plan::act(Effect::ReadTemplate(revision)),
        Successor::Other => {
            let since = row.attempt.scheduled_at.or(row.attempt.created_at).unwrap_or(row.now);
            let left = REPAIR_TIME - row.now.duration_since(since);
            if left.is_positive() {
                return waiting.requeue_when_left(left);
            }
            let is_image = pod::is_image_problem(reason);
            let cause = if is_image { Cause::ImageUnavailable } else { Cause::StartFailed };
            fall_back(ctx, End::new(cause, Class::Neutral, reason_and_message(reason, message)))
        }
    }
}

fn fall_back(ctx: &Context<'_>, end: End) -> Plan {
    let message = with_log("the next attempt uses the template that wrote the checkpoint", &end.message);
    Plan::end(ctx.row, End { class: Class::Neutral, message, ..end }, NextStep::Reserve)
}

/// The successor's template if the definition stays as it is now.
fn after_edit(ctx: &Context<'_>, seen: &ObservedPod, agent: &Agent) -> Successor {
    let Context { observed, row, settings, .. } = *ctx;
    let Some(used) = row.attempt.revision.as_deref().filter(|it| !it.is_empty()) else {
        return Successor::Same;
    };
    let is_pinned = annotation(&seen.pod, names::ANNOTATION_PINNED).is_some();
    if !is_pinned && Document::of(agent).hash() == used {
        return Successor::Same;
    }
    let wrote_head = version::last_written(row).and_then(|it| it.revision) == Some(used);
    match version::choose_template(row, agent, settings.on_mismatch, &observed.templates) {
        // The pod has that template, with its image named as in the definition.
        Choice::NeedsTemplate(_) if wrote_head => Successor::Same,
        Choice::Use(template) if wrote_head && template.pinned => Successor::Same,
        choice => compare(used, choice),
    }
}

/// The successor's template if the current attempt fails to start.
fn after_failed_start(ctx: &Context<'_>) -> Successor {
    let Context { observed, row, settings, .. } = *ctx;
    let (Some(agent), Some(used)) = (observed.agent(), row.attempt.revision.as_deref()) else {
        return Successor::Same;
    };
    let mut failed = row.clone();
    let end = AttemptEnd {
        cause: Cause::StartFailed,
        class: Class::Neutral,
        charged: false,
        progress: false,
        exit_code: None,
        message: String::new(),
    };
    failed.past.insert(0, Attempt { end: Some(end), ..row.attempt.clone() });
    compare(used, version::choose_template(&failed, agent, settings.on_mismatch, &observed.templates))
}

fn compare(used: &str, choice: Choice) -> Successor {
    match choice {
        Choice::Use(template) if template.document.hash() != used => Successor::Other,
        Choice::Use(_) | Choice::Blocked(_) => Successor::Same,
        Choice::NeedsTemplate(revision) => Successor::Unknown(revision),
    }
}
