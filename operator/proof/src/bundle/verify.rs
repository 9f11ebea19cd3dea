//! Verifies a bundle line by line, without a store.

use std::io::{self, BufRead, Read as _};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use dalsegno_format::codec::LIMIT;
use dalsegno_model::Digest;
use dalsegno_model::read_transaction::RunHead;
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

use super::lines::{BundleLine, EndLine, Line};
use super::{LISTS_CALLS, LISTS_WAITS, VERSION, signed};
use crate::audit_reconciler::AuditReconciler;
use crate::records::Records;
use crate::{AuditChain, BoundaryChain, Problem, PublicKey, is_signed};

/// The longest line in bytes: the payloads of a boundary, with each character escaped.
const LINE: u64 = 6 * 2 * LIMIT as u64;

/// What was verified, and the result.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    /// `NAMESPACE/NAME` of the run.
    pub run: String,
    /// The public key that it names.
    pub public_key: Option<PublicKey>,
    /// Number of boundaries.
    pub boundaries: i64,
    /// Number of events.
    pub events: i64,
    /// Number of calls.
    pub calls: i64,
    /// Number of waits.
    pub waits: i64,
    /// Number of messages.
    pub messages: i64,
    /// Number of batches of records.
    pub batches: i64,
    /// Number of records.
    pub records: i64,
    /// Number of audit rows.
    pub audit: i64,
    /// Whether the run was shredded before the export. Only its chains can be verified then.
    pub shredded: bool,
    /// The problems that were found.
    pub problems: Vec<Problem>,
}

impl Verified {
    /// The result for people: each problem, what was checked, and the key. `is_trusted`: the caller has named the key.
    pub fn report(&self, is_trusted: bool) -> Vec<String> {
        let counted =
            |number: i64, one: &str| format!("{number} {one}{}", if number == 1 { "" } else { "s" });
        let problems = i64::try_from(self.problems.len()).unwrap_or(i64::MAX);
        let boundaries = match self.boundaries {
            1 => "1 boundary".to_owned(),
            number => format!("{number} boundaries"),
        };
        let mut lines: Vec<String> = self.problems.iter().map(ToString::to_string).collect();
        lines.push(format!(
            "run {}: {boundaries}, {}, {}, {}: {}",
            self.run,
            counted(self.events, "event"),
            counted(self.calls, "call"),
            counted(self.audit, "audit row"),
            counted(problems, "problem")
        ));
        if self.shredded {
            lines.push(
                "the run was shredded before it was exported: its payloads are not in the bundle".to_owned(),
            );
        }
        if let Some(named) = self.public_key {
            let trust = if is_trusted { "" } else { " (named by the bundle itself: compare it)" };
            lines.push(format!("public key {}{trust}", STANDARD.encode(named)));
        }
        lines
    }
}

/// Verifies the signature, digest, chains and counts of a bundle. `key` is the key that must have signed it; without
/// it, the key that the bundle names is used.
///
/// # Errors
///
/// The file cannot be read.
pub fn verify(bundle: impl BufRead, key: Option<PublicKey>) -> io::Result<Verified> {
    let mut check = Check::new(key);
    let mut bundle = bundle;
    let mut line = Vec::new();
    for number in 1.. {
        line.clear();
        if bundle.by_ref().take(LINE).read_until(b'\n', &mut line)? == 0 {
            break;
        }
        let boundary_id = format!("line {number}");
        if let Err(what) = check.line(&line) {
            check.found.problems.push(Problem::at(boundary_id, what));
            // After an unreadable line the rest cannot be interpreted.
            break;
        }
    }
    Ok(check.end())
}

/// The kinds of lines, in their required order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Nothing,
    Bundle,
    Boundary,
    Call,
    Wait,
    Message,
    RecordBatch,
    Record,
    Audit,
    End,
}

struct Check {
    key: Option<PublicKey>,
    last: Kind,
    digest: Sha256,
    run: Uuid,
    version: u32,
    head: Option<RunHead>,
    boundaries: BoundaryChain,
    audit: AuditChain,
    reconciler: AuditReconciler,
    records: Records,
    found: Verified,
}

impl Check {
    fn new(key: Option<PublicKey>) -> Self {
        let run = Uuid::nil();
        Self {
            key,
            last: Kind::Nothing,
            digest: Sha256::new(),
            run,
            version: VERSION,
            head: None,
            boundaries: BoundaryChain::new(run, None),
            audit: AuditChain::new(run),
            reconciler: AuditReconciler::default(),
            records: Records::default(),
            found: Verified::default(),
        }
    }

    fn line(&mut self, bytes: &[u8]) -> Result<(), String> {
        let text = bytes.strip_suffix(b"\n").ok_or("it is cut")?;
        let line: Line =
            serde_json::from_slice(text).map_err(|error| format!("it cannot be read: {error}"))?;
        let kind = match &line {
            Line::Bundle(_) => Kind::Bundle,
            Line::Boundary(_) => Kind::Boundary,
            Line::Call(_) => Kind::Call,
            Line::Wait(_) => Kind::Wait,
            Line::Message(_) => Kind::Message,
            Line::RecordBatch(_) => Kind::RecordBatch,
            Line::Record(_) => Kind::Record,
            Line::Audit(_) => Kind::Audit,
            Line::End(_) => Kind::End,
        };
        let once = matches!(kind, Kind::Bundle | Kind::End);
        let first = self.last == Kind::Nothing;
        if kind < self.last || (once && kind == self.last) || first != (kind == Kind::Bundle) {
            return Err("it is out of order".into());
        }
        self.last = kind;
        if let Line::End(end) = &line {
            // The digest does not cover this line, so its form must be canonical.
            if serde_json::to_vec(&line).map_err(|error| error.to_string())? != text {
                return Err("it is not in its canonical form".into());
            }
            self.take_end(end);
            return Ok(());
        }
        self.digest.update(bytes);
        match line {
            Line::Bundle(bundle) => self.begin(&bundle)?,
            Line::Boundary(boundary) => {
                self.found.events += boundary.events.len() as i64;
                self.found.boundaries += 1;
                let boundary = boundary.stored(self.run)?;
                self.reconciler.add_boundary(&boundary);
                self.records.add_boundary(&boundary);
                let problem = self.boundaries.push(&boundary);
                self.found.problems.extend(problem);
            }
            Line::Call(call) => {
                self.found.calls += 1;
                self.reconciler.add_call(&call.stored()?);
            }
            Line::Wait(wait) => {
                self.found.waits += 1;
                self.reconciler.add_wait(&wait.stored()?);
            }
            Line::Message(message) => {
                self.found.messages += 1;
                self.reconciler.add_message(message.stored()?);
            }
            Line::RecordBatch(batch) => {
                self.found.batches += 1;
                self.records.add_batch(batch.stored());
            }
            Line::Record(record) => {
                if self.found.records == 0 {
                    self.records.end_batches(self.head.as_ref());
                }
                self.found.records += 1;
                self.records.add_record(record.stored());
            }
            Line::Audit(row) => {
                self.found.audit += 1;
                let row = row.row()?;
                self.reconciler.add_audit_row(&row);
                let problem = self.audit.push(&row);
                self.found.problems.extend(problem);
            }
            Line::End(_) => {}
        }
        Ok(())
    }

    fn begin(&mut self, bundle: &BundleLine) -> Result<(), String> {
        if !(1..=VERSION).contains(&bundle.version) {
            return Err(format!(
                "it is of version {}, and this program reads 1 to {VERSION}",
                bundle.version
            ));
        }
        self.version = bundle.version;
        let run = bundle.run.stored()?;
        self.run = run.id;
        self.boundaries = BoundaryChain::new(run.id, run.head);
        self.audit = AuditChain::new(run.id);
        self.found.run = format!("{}/{}", run.namespace, run.name);
        self.head = Some(run);
        self.found.public_key = Some(bundle.public_key.0);
        if self.key.is_some_and(|key| key != bundle.public_key.0) {
            self.found
                .problems
                .push(Problem::at("line 1", "it names another public key than it must be signed by"));
        }
        Ok(())
    }

    fn take_end(&mut self, end: &EndLine) {
        let sha256: Digest = self.digest.clone().finalize().into();
        let found = &mut self.found;
        let key = self.key.or(found.public_key);
        let has_waits = self.version >= LISTS_WAITS;
        let counts = (
            (end.boundaries, end.events, end.calls, end.audit),
            (end.waits, end.messages, end.record_batches, end.records),
        );
        let counted = (
            (found.boundaries, found.events, found.calls, found.audit),
            (
                has_waits.then_some(found.waits),
                has_waits.then_some(found.messages),
                has_waits.then_some(found.batches),
                has_waits.then_some(found.records),
            ),
        );
        let faults = [
            (end.sha256.0 != sha256, "the lines before it have another digest"),
            (
                !key.is_some_and(|key| is_signed(&key, &signed(&end.sha256.0), &end.signature.0)),
                "it is not signed by the key",
            ),
            (counts != counted, "it counts other lines than there are"),
        ];
        let reported =
            faults.into_iter().filter(|(is_so, _)| *is_so).map(|(_, what)| Problem::at("end", what));
        found.problems.extend(reported);
    }

    fn end(mut self) -> Verified {
        if self.last != Kind::End {
            self.found.problems.push(Problem::at("end", "it is missing: the bundle is cut"));
        }
        self.found.problems.extend(self.boundaries.end());
        self.found.shredded = self.reconciler.is_shredded();
        self.found.problems.extend(self.reconciler.end(self.run));
        if let Some(run) = &self.head {
            self.found.problems.extend(self.audit.pruned().err());
            self.found.problems.extend(self.audit.end(run.audit_seq, &run.audit_hash));
            self.found.problems.extend(self.reconciler.end_run(run));
            if self.version >= LISTS_CALLS {
                self.found.problems.extend(self.reconciler.end_calls(self.run));
            }
            if self.version >= LISTS_WAITS {
                self.found.problems.extend(self.reconciler.end_waits(self.run));
                self.found.problems.extend(self.reconciler.end_messages(self.run));
                if self.found.records == 0 {
                    self.records.end_batches(Some(run));
                }
                // Records of a run that is past its retention are deleted in any order.
                if !self.reconciler.is_over() {
                    self.found.problems.extend(self.records.end(self.run));
                }
            }
        }
        self.found
    }
}
