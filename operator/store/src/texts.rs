//! Texts about a run that are sealed under its data key: how its attempts ended, and what its finish says.
//!
//! A rule of a run is pure, so these texts are sealed before it decides, and opened in its answer. A text that cannot be
//! sealed or opened stops nothing: [`WITHHELD`] or [`UNREADABLE`] stands in its place.

use dalsegno_format::header;
use dalsegno_format::seal::{AadContext, PayloadCipher, is_sealed_text};
use dalsegno_model::{
    Answered, Attempt, Created, Error, Forked, LookUp, NewFinish, NextStep, Recorded, Result, Rewound,
    RunRecord,
};
use sha2::{Digest as _, Sha256};

/// Stored in place of a text that could not be sealed.
const WITHHELD: &str = "(not stored: it could not be encrypted)";

/// Shown in place of a text that cannot be opened.
const UNREADABLE: &str = "(encrypted, and its key is not there)";

/// An answer of the store that may hold a run's record.
pub(crate) trait HoldsRecord {
    /// The record, if its texts are to be opened.
    fn record(&mut self) -> Option<&mut RunRecord> {
        None
    }
}

impl HoldsRecord for RunRecord {
    fn record(&mut self) -> Option<&mut RunRecord> {
        Some(self)
    }
}

impl HoldsRecord for Rewound {
    fn record(&mut self) -> Option<&mut RunRecord> {
        match self {
            Self::Done(record) | Self::Refused(record) => Some(record),
        }
    }
}

impl HoldsRecord for Recorded {
    fn record(&mut self) -> Option<&mut RunRecord> {
        match self {
            Self::Done(record) | Self::Refused(record) => Some(record),
        }
    }
}

impl HoldsRecord for Answered {
    fn record(&mut self) -> Option<&mut RunRecord> {
        match self {
            Self::Ok(record) | Self::Duplicate(record) | Self::NotOpen(record) | Self::NoSuchWait(record) => {
                Some(record)
            }
        }
    }
}

impl HoldsRecord for LookUp {
    fn record(&mut self) -> Option<&mut RunRecord> {
        match self {
            Self::Found(record) => Some(record),
            Self::NotFound { .. } => None,
        }
    }
}

impl HoldsRecord for Created {
    fn record(&mut self) -> Option<&mut RunRecord> {
        match self {
            Self::Run(record) => Some(record),
            Self::Prior(_) => None,
        }
    }
}

impl HoldsRecord for Forked {
    fn record(&mut self) -> Option<&mut RunRecord> {
        match self {
            Self::Step(record) => Some(record),
            Self::Refused(_) => None,
        }
    }
}

/// Answers without a record, and the answer to an attach: workers do not get these texts, and an attach waits for nothing.
macro_rules! no_record {
    ($($answer:ty),+) => { $(impl HoldsRecord for $answer {})+ };
}

no_record!(
    (),
    bool,
    dalsegno_model::Acknowledged,
    dalsegno_model::Attached,
    dalsegno_model::Committed,
    dalsegno_model::Completed,
    dalsegno_model::Parked,
    dalsegno_model::Sent,
    dalsegno_model::WaitOpened
);

/// The cipher of a run's texts; `None` if it cannot be had at all. An error: another try may have it.
pub(crate) fn cipher_if_any<C>(cipher: Result<C>) -> Result<Option<C>> {
    match cipher {
        Ok(cipher) => Ok(Some(cipher)),
        Err(Error::Unusable(_) | Error::Corrupt { .. } | Error::Gone { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether any text of the record is sealed.
pub(crate) fn has_sealed_texts(record: &RunRecord) -> bool {
    let finish = record.finish.iter().flat_map(|it| [Some(&it.message), it.output.as_ref()]).flatten();
    let attempts = record.past.iter().chain([&record.attempt]);
    let ends = attempts.filter_map(|attempt| Some(&attempt.end.as_ref()?.message));
    finish.chain(ends).any(|text| is_sealed_text(text))
}

/// Opens the texts of a record. `None`: there is no cipher that could.
pub(crate) fn open_record(record: &mut RunRecord, cipher: Option<&PayloadCipher>) {
    if let Some(finish) = &mut record.finish {
        open(&mut finish.message, AadContext::FinishMessage, cipher);
        if let Some(output) = &mut finish.output {
            open(output, AadContext::FinishOutput, cipher);
            if output == UNREADABLE {
                // An output is JSON.
                finish.output = None;
            }
        }
    }
    for attempt in record.past.iter_mut().chain([&mut record.attempt]) {
        open_attempt(attempt, cipher);
    }
}

/// Opens the texts of an attempt.
pub(crate) fn open_attempt(attempt: &mut Attempt, cipher: Option<&PayloadCipher>) {
    let context = AadContext::EndMessage(attempt.number);
    if let Some(end) = &mut attempt.end {
        open(&mut end.message, context, cipher);
    }
}

fn open(text: &mut String, context: AadContext<'_>, cipher: Option<&PayloadCipher>) {
    if is_sealed_text(text) {
        let opened = cipher.and_then(|cipher| cipher.open_text(context, text).ok().flatten());
        *text = opened.unwrap_or_else(|| UNREADABLE.to_owned());
    }
}

/// A text as it is stored. PostgreSQL stores no NUL. An empty text says nothing, and stays empty.
fn seal(text: &str, context: AadContext<'_>, cipher: Option<&PayloadCipher>) -> String {
    if text.is_empty() {
        return String::new();
    }
    let sealed = cipher.and_then(|cipher| cipher.seal_text(context, &text.replace('\0', "\u{fffd}")).ok());
    sealed.unwrap_or_else(|| WITHHELD.to_owned())
}

/// A finish as it is stored. Its reason is one word, and stays in clear.
pub(crate) fn sealed_finish(finish: &NewFinish, cipher: Option<&PayloadCipher>) -> NewFinish {
    let NewFinish { outcome, reason, message, output } = finish;
    let output = output.as_deref().and_then(|output| {
        let sealed = seal(output, AadContext::FinishOutput, cipher);
        (sealed != WITHHELD).then_some(sealed)
    });
    NewFinish {
        outcome: *outcome,
        reason: reason.clone(),
        message: seal(message, AadContext::FinishMessage, cipher),
        output,
    }
}

/// As [`sealed_finish`], for the step after an end.
pub(crate) fn sealed_step(step: &NextStep, cipher: Option<&PayloadCipher>) -> NextStep {
    match step {
        NextStep::Finish(finish) => NextStep::Finish(sealed_finish(finish, cipher)),
        NextStep::Reserve | NextStep::Nothing => step.clone(),
    }
}

/// How an attempt ended, as it is stored, and as the audit says it.
#[derive(Clone, Debug)]
pub(crate) struct EndMessage {
    /// For the attempt.
    pub stored: String,
    /// For the audit, if the stored text is sealed: its keyed digest. No row of the audit is ever made unreadable.
    pub digest: Option<String>,
}

impl EndMessage {
    /// `None` in place of a cipher: there should be one, and it cannot be had.
    pub fn of(message: &str, attempt: i32, cipher: Option<&PayloadCipher>) -> Self {
        let stored = seal(message, AadContext::EndMessage(attempt), cipher);
        let keyed = |cipher: &PayloadCipher| header::render(&cipher.digest(Sha256::digest(message).into()));
        let digest = cipher.filter(|_| is_sealed_text(&stored)).map(keyed);
        Self { stored, digest }
    }

    /// Adds the message to the detail of an audit row.
    pub fn audited(&self, mut detail: serde_json::Value) -> serde_json::Value {
        match &self.digest {
            Some(digest) => detail["messageDigest"] = digest.as_str().into(),
            None => detail["message"] = self.stored.as_str().into(),
        }
        detail
    }
}
