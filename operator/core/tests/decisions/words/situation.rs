//! A run and what is seen of it, but for the store's row.

use dalsegno_core::revision::Document;
use dalsegno_core::{AgentSight, Decision, HeadSight, NodeSight, Observed, Refusal, StoreSight, decide};
use dalsegno_crds::{
    Agent, AgentRun, AgentRunSpec, AgentRunStatus, AttemptStatus, CheckpointStatus, ConditionType,
    PodTemplate, Reason, RunDefaults, Summary, condition,
};
use dalsegno_model::checkpoint::{Checkpoint, Corruption, LastGood};
use dalsegno_model::{Place, PriorRun, RunRecord};
use dalsegno_protocol::Boundary;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, json};
use uuid::Uuid;

use super::store::{STORE, fresh_row};
use super::{NAMESPACE, RUN, Seen, TAGGED, UID, ago, now};

/// An epoch that no row has.
const LONG_AGO: i64 = -1;

/// What is given: an AgentRun, the store's row, and whatever else is seen.
#[derive(Clone, Debug)]
pub struct Given {
    pub run: AgentRun,
    pub row: RunRecord,
    pub seen: Observed,
}

/// A run of a definition that is there, taken up by the store, its first attempt reserved.
pub fn run() -> Given {
    let mut run = AgentRun::new(RUN, AgentRunSpec::default());
    run.metadata.namespace = Some(NAMESPACE.into());
    run.metadata.uid = Some(UID.into());
    run.metadata.generation = Some(1);
    let row = fresh_row();
    let seen = Observed {
        store: StoreSight::Found(Box::new(row.clone())),
        agent: AgentSight::NotFound,
        pods: Vec::new(),
        node: Some(NodeSight { ready: true, since: ago(86_400) }),
        templates: Default::default(),
        head: Some(HeadSight::of(&row, Checkpoint::Sound)),
        refusal: None,
        name_taken: false,
        gateway_url: "http://gateway".into(),
    };
    let template = json!({ "spec": { "containers": [{ "name": "agent", "image": TAGGED }] } });
    Given { run, row, seen }.spec(json!({ "agentRef": { "name": "helper" } })).agent(template)
}

impl Given {
    /// The decision.
    pub fn decide(&self) -> Decision {
        decide(&self.run, &self.observed(), now())
    }

    /// What is seen, with the row that was built.
    pub fn observed(&self) -> Observed {
        let mut seen = self.seen.clone();
        if matches!(seen.store, StoreSight::Found(_)) {
            seen.store = StoreSight::Found(Box::new(self.row.clone()));
        }
        if let Some(head) = seen.head.as_mut().filter(|head| head.epoch != LONG_AGO) {
            *head = HeadSight::of(&self.row, head.found.clone());
        }
        seen
    }

    // What the person wrote.

    /// Merges fields into the spec.
    pub fn spec(mut self, fields: Value) -> Self {
        let mut spec = serde_json::to_value(&self.run.spec).unwrap();
        merge(&mut spec, fields);
        self.run.spec = serde_json::from_value(spec).unwrap();
        self.obeyed()
    }

    /// The definition's defaults.
    pub fn defaults(mut self, fields: Value) -> Self {
        if let AgentSight::Found { defaults, .. } = &mut self.seen.agent {
            **defaults = serde_json::from_value(fields).unwrap();
        }
        self.obeyed()
    }

    /// The spec was edited: a new generation of it.
    pub fn edited(mut self) -> Self {
        self.run.metadata.generation = self.run.metadata.generation.map(|it| it + 1);
        self
    }

    pub fn cancelled(self) -> Self {
        self.spec(json!({ "operatingMode": "Cancelled" }))
    }

    pub fn recovery(self, fields: Value) -> Self {
        self.spec(json!({ "recovery": fields }))
    }

    pub fn on_mismatch(self, policy: &str) -> Self {
        self.spec(json!({ "versionPolicy": { "onMismatch": policy } }))
    }

    // What the agent is.

    /// Its template; nothing is declared.
    pub fn agent(mut self, template: Value) -> Self {
        let Value::Object(template) = template else { panic!("a template is an object") };
        let agent =
            Agent { template: PodTemplate(template), agent_version: None, compatible_with: Vec::new() };
        let defaults = Box::<RunDefaults>::default();
        self.seen.agent = AgentSight::Found { agent: Box::new(agent), defaults };
        self
    }

    /// The worker's image, as the template names it.
    pub fn image(self, image: &str) -> Self {
        self.agent(json!({ "spec": { "containers": [{ "name": "agent", "image": image }] } }))
    }

    pub fn declares(mut self, version: &str) -> Self {
        self.the_agent().agent_version = Some(version.into());
        self
    }

    pub fn compatible_with(mut self, version: &str) -> Self {
        self.the_agent().compatible_with.push(version.into());
        self
    }

    pub fn no_definition(mut self) -> Self {
        self.seen.agent = AgentSight::NotFound;
        self
    }

    pub fn malformed_definition(mut self, why: &str) -> Self {
        self.seen.agent = AgentSight::Malformed(why.into());
        self
    }

    /// The current template as a document.
    pub fn document(&self) -> Document {
        Document::of(self.seen.agent().unwrap())
    }

    /// A template that is in the store, under its hash.
    pub fn stored(mut self, document: &Document) -> Self {
        self.seen.templates.insert(document.hash(), Some(document.text()));
        self
    }

    /// A template that is not in the store any more.
    pub fn lost(mut self, revision: &str) -> Self {
        self.seen.templates.insert(revision.into(), None);
        self
    }

    // What the store says.

    pub fn store_unknown(mut self) -> Self {
        self.seen.store = StoreSight::Unknown("connection refused".into());
        self
    }

    /// The store answers again.
    pub fn found_again(mut self) -> Self {
        self.seen.store = StoreSight::Found(Box::new(self.row.clone()));
        self
    }

    pub fn not_in_store(mut self) -> Self {
        self.seen.store = StoreSight::NotFound { store_id: STORE };
        self
    }

    /// A prior run, of the namespace that had this UID; the namespace has the UID `shop-uid`.
    pub fn prior(mut self, turn: i32, tenant: &str) -> Self {
        let (object_uid, asked_by) = ("earlier-uid".into(), "shop-uid".into());
        let prior = PriorRun { id: Uuid::nil(), object_uid, tenant: tenant.into(), asked_by, turn };
        self.seen.store = StoreSight::Prior(prior);
        self
    }

    /// Nobody has looked at the head for this attempt.
    pub fn head_not_looked_at(mut self) -> Self {
        self.seen.head = None;
        self
    }

    /// It was looked at before the epoch moved.
    pub fn head_looked_at_before(mut self) -> Self {
        self.seen.head = Some(HeadSight { epoch: LONG_AGO, reset_generation: 0, found: Checkpoint::Sound });
        self
    }

    /// The head cannot be rebuilt; the last good turn, if any, and the calls with an effect after it.
    pub fn corrupt(mut self, last_good: Option<i32>, effects: &[&str]) -> Self {
        let last_good = last_good.map(|turn| LastGood {
            place: Place { turn, boundary: Boundary::Result, epoch: 1 },
            effects: effects.iter().map(|it| (*it).to_owned()).collect(),
        });
        let detail = "turn 7 (result): it has another payload than was committed".into();
        let found = Checkpoint::Corrupt(Corruption { detail, last_good });
        self.seen.head = Some(HeadSight::of(&self.row, found));
        self
    }

    // What the API server shows.

    pub fn pod(mut self, seen: Seen) -> Self {
        self.seen.pods.push(seen.0);
        self
    }

    pub fn node_not_ready(mut self, seconds: i64) -> Self {
        self.seen.node = Some(NodeSight { ready: false, since: ago(seconds) });
        self
    }

    pub fn node_ready(mut self, seconds: i64) -> Self {
        self.seen.node = Some(NodeSight { ready: true, since: ago(seconds) });
        self
    }

    pub fn name_taken(mut self) -> Self {
        self.seen.name_taken = true;
        self
    }

    /// The API server refused the pod of the current template.
    pub fn refused(mut self, code: u16, message: &str, times: u32, seconds_ago: i64) -> Self {
        let revision = self.document().hash();
        self.seen.refusal =
            Some(Refusal { code, message: message.into(), times, at: ago(seconds_ago), revision });
        self
    }

    // What the status says.

    pub fn knows(mut self, attempt: i32, turn: i32, position: i64) -> Self {
        let status = self.status();
        status.store_id = Some(STORE.to_string());
        status.attempt = Some(AttemptStatus { number: attempt, ..AttemptStatus::default() });
        status.checkpoint =
            Some(CheckpointStatus { turn, event_position: position, ..CheckpointStatus::default() });
        self
    }

    pub fn knows_store(mut self, id: Uuid) -> Self {
        self.status().store_id = Some(id.to_string());
        self
    }

    /// The status says that the run succeeded.
    pub fn told_succeeded(mut self) -> Self {
        let since = Time(ago(600));
        let told = condition(ConditionType::Finished, true, Reason::Completed, "", Some(1), since);
        let status = self.status();
        status.conditions.push(told);
        (status.summary, status.reason) = (Some(Summary::Succeeded), Some(Reason::Completed));
        self
    }

    /// The status is written as decided, and read back from the API server.
    pub fn written(mut self) -> Self {
        let status = serde_json::to_string(&self.decide().status).unwrap();
        self.run.status = serde_json::from_str(&status).unwrap();
        self
    }

    pub fn status(&mut self) -> &mut AgentRunStatus {
        self.run.status.get_or_insert_default()
    }

    fn the_agent(&mut self) -> &mut Agent {
        match &mut self.seen.agent {
            AgentSight::Found { agent, .. } => agent,
            AgentSight::NotFound | AgentSight::Malformed(_) => panic!("there is no agent"),
        }
    }
}

fn merge(into: &mut Value, fields: Value) {
    match (into, fields) {
        (Value::Object(into), Value::Object(fields)) => {
            for (key, value) in fields {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, value) => *into = value,
    }
}
