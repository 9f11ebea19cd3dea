//! The AgentApproval that an open approval should have.

use std::collections::BTreeMap;

use dalsegno_crds::{AgentApproval, AgentApprovalSpec, AgentRun, OnTimeout, RunRef, names};
use dalsegno_model::OpenWait;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use sha2::{Digest as _, Sha256};

use super::observed::{ObservedApproval, WaitKey};

/// Bytes of the hash in the name of an AgentApproval.
const NAME_HASH_BYTES: usize = 5;

/// Name of the AgentApproval of a wait: the run's name, and a hash of the run's UID and the wait.
pub fn name_of(run: &AgentRun, wait: &WaitKey) -> String {
    let uid = run.metadata.uid.as_deref().unwrap_or_default();
    let mut hash = Sha256::new();
    for part in [uid.as_bytes(), wait.id.as_bytes(), &wait.epoch.to_be_bytes()] {
        hash.update(u64::try_from(part.len()).unwrap_or_default().to_be_bytes());
        hash.update(part);
    }
    let hash = hash.finalize();
    let hex: String = hash[..NAME_HASH_BYTES].iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{}-{hex}", run.metadata.name.as_deref().unwrap_or_default())
}

/// The AgentApproval of an open approval, with the agent's words: its title and its summary.
pub(super) fn wanted(
    run: &AgentRun,
    wait: &OpenWait,
    words: (String, String),
    four_eyes: bool,
) -> AgentApproval {
    let (title, summary) = words;
    let spec = AgentApprovalSpec { title, summary, ..spec_without_words(run, wait, four_eyes) };
    let mut approval = AgentApproval::new(&name_of(run, &WaitKey::of(wait)), spec);
    approval.metadata.namespace = run.metadata.namespace.clone();
    approval.metadata.owner_references = Some(vec![run.owner_reference()]);
    let label = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    approval.metadata.labels = Some(BTreeMap::from([
        label(names::LABEL_MANAGED_BY, names::MANAGED_BY),
        label(names::LABEL_RUN, run.metadata.name.as_deref().unwrap_or_default()),
        label(names::LABEL_RUN_UID, run.metadata.uid.as_deref().unwrap_or_default()),
    ]));
    approval
}

fn spec_without_words(run: &AgentRun, wait: &OpenWait, four_eyes: bool) -> AgentApprovalSpec {
    AgentApprovalSpec {
        run_ref: RunRef {
            name: run.metadata.name.clone().unwrap_or_default(),
            uid: run.metadata.uid.clone().unwrap_or_default(),
        },
        wait_id: wait.id.clone(),
        epoch: wait.epoch,
        turn: wait.turn,
        proposal_hash: rendered_hash(wait),
        title: String::new(),
        summary: String::new(),
        deadline_time: wait.deadline_at.map(whole_seconds),
        on_timeout: match wait.on_timeout {
            dalsegno_protocol::OnTimeout::Answer => OnTimeout::Answer,
            dalsegno_protocol::OnTimeout::Hold => OnTimeout::Hold,
            dalsegno_protocol::OnTimeout::Fail => OnTimeout::Fail,
        },
        four_eyes,
        decision: None,
        second_decision: None,
    }
}

/// The hash of a proposal, as `sha256:…`.
fn rendered_hash(wait: &OpenWait) -> String {
    let hash = wait.proposal_hash.unwrap_or_default();
    hash.iter().fold("sha256:".to_owned(), |text, byte| format!("{text}{byte:02x}"))
}

/// A time as the API server keeps it.
fn whole_seconds(at: Timestamp) -> Time {
    Time(Timestamp::from_second(at.as_second()).unwrap_or(at))
}

/// Whether the object is the one of this wait: ours, and about this proposal. Its words are compared with the store when a
/// decision is judged. An object that demands four eyes may do so although the run no longer does.
pub(super) fn is_of(seen: &ObservedApproval, run: &AgentRun, wait: &OpenWait, four_eyes: bool) -> bool {
    let spec = &seen.object.spec;
    let wanted = spec_without_words(run, wait, four_eyes || spec.four_eyes);
    let same = AgentApprovalSpec {
        title: String::new(),
        summary: String::new(),
        decision: None,
        second_decision: None,
        ..spec.clone()
    };
    is_owned_by(seen, run) && same == wanted
}

/// Whether the object belongs to this run, and to no other object.
pub(super) fn is_owned_by(seen: &ObservedApproval, run: &AgentRun) -> bool {
    let owners = seen.object.metadata.owner_references.as_deref().unwrap_or_default();
    matches!(owners, [owner] if *owner == run.owner_reference())
}
