//! Objects that this version cannot parse, for example because they were stored under an older schema.

use std::collections::HashMap;
use std::sync::Mutex;

use crate::metrics::Metrics;
use crate::mutex::lock;

/// The invalid objects, by UID. Keeps the metric up to date.
#[derive(Debug, Default)]
pub struct InvalidObjects(Mutex<HashMap<String, InvalidObject>>);

#[derive(Debug)]
struct InvalidObject {
    kind: String,
    generation: Option<i64>,
    /// An event about this generation was published.
    reported: bool,
}

/// A generation of an object.
#[derive(Clone, Copy, Debug)]
pub struct ObjectGeneration<'a> {
    pub uid: &'a str,
    pub kind: &'a str,
    pub generation: Option<i64>,
}

/// Whether an invalid object was known before.
#[derive(Clone, Copy, Debug)]
pub struct Known {
    /// This generation of the object was not known before.
    pub is_new: bool,
    /// An event about this generation was published.
    pub is_reported: bool,
}

impl InvalidObjects {
    /// Records an invalid object, or a new generation of one.
    pub fn insert(&self, object: ObjectGeneration<'_>, metrics: &Metrics) -> Known {
        let ObjectGeneration { uid, kind, generation } = object;
        let mut objects = lock(&self.0);
        if let Some(before) = objects.get(uid).filter(|it| it.generation == generation) {
            return Known { is_new: false, is_reported: before.reported };
        }
        objects.insert(uid.to_owned(), InvalidObject { kind: kind.to_owned(), generation, reported: false });
        update_metric(&objects, metrics);
        Known { is_new: true, is_reported: false }
    }

    /// Records that an event about the object was published.
    pub fn mark_reported(&self, uid: &str) {
        if let Some(object) = lock(&self.0).get_mut(uid) {
            object.reported = true;
        }
    }

    /// Removes an object that is valid now, or is being deleted.
    pub fn remove(&self, uid: &str, metrics: &Metrics) {
        let mut objects = lock(&self.0);
        if objects.remove(uid).is_some() {
            update_metric(&objects, metrics);
        }
    }

    /// Removes all objects but those that `keep` accepts.
    pub fn retain(&self, keep: impl Fn(&str) -> bool, metrics: &Metrics) {
        let mut objects = lock(&self.0);
        objects.retain(|uid, _| keep(uid));
        update_metric(&objects, metrics);
    }
}

fn update_metric(objects: &HashMap<String, InvalidObject>, metrics: &Metrics) {
    metrics.set_invalid_objects(|kind| objects.values().filter(|it| it.kind == kind).count());
}
