//! The termination message by which a worker reports why it exits. Its format is part of the worker's contract.

use dalsegno_crds::Cause;
use dalsegno_model::Class;
use serde::Deserialize;

use crate::end::End;

/// Version of the format that this module reads.
const FORMAT: u32 = 1;

/// The content of a termination message, as JSON.
#[derive(Deserialize)]
struct TerminationMessage {
    /// Version of the format.
    dalsegno: u32,
    class: ReportedClass,
    #[serde(default)]
    message: String,
}

/// The class that a worker may report.
#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum ReportedClass {
    /// The attempt crashed.
    Crash,
    /// Something else stopped the worker.
    Disruption,
    /// The attempt crashed, and a further attempt will not help.
    Fatal,
}

/// Parses a termination message. Returns `None` if the text is not in the contract's format, for example because it is
/// a log.
pub fn parse(text: &str) -> Option<End> {
    let TerminationMessage { dalsegno, class, message } = serde_json::from_str(text.trim()).ok()?;
    let (cause, class) = match class {
        ReportedClass::Crash => (Cause::WorkerReported, Class::Crash),
        ReportedClass::Disruption => (Cause::WorkerReported, Class::Disruption),
        ReportedClass::Fatal => (Cause::WorkerFatal, Class::Crash),
    };
    (dalsegno == FORMAT).then(|| End::new(cause, class, message))
}
