//! Attempts that have ended.

use dalsegno_core::evidence::End;
use dalsegno_crds::Cause;
use dalsegno_model::{Attempt, AttemptEnd, AttemptState, Class, Identity, Verdict};

use super::{ago, digest};

/// A past attempt.
pub struct Past(pub Attempt);

/// An attempt that crashed, charged, without progress, 10 s ago.
pub fn crashed(number: i32, cause: Cause) -> Past {
    past(number, cause, Class::Crash)
}

/// An attempt that was disrupted, without progress, 10 s ago.
pub fn disrupted(number: i32, cause: Cause) -> Past {
    past(number, cause, Class::Disruption)
}

/// An attempt whose end is nobody's fault, 10 s ago.
pub fn nobodys(number: i32, cause: Cause) -> Past {
    past(number, cause, Class::Neutral)
}

fn past(number: i32, cause: Cause, class: Class) -> Past {
    let message = End::new(cause, class, "last words").of(number).message;
    let end = AttemptEnd {
        cause,
        class,
        charged: class == Class::Crash,
        progress: false,
        exit_code: None,
        message,
    };
    Past(Attempt {
        state: AttemptState::Ended,
        turn_at_end: Some(0),
        ended_at: Some(ago(10)),
        end: Some(end),
        ..reserved(number)
    })
}

/// An attempt that nothing has happened to.
pub fn reserved(number: i32) -> Attempt {
    Attempt {
        number,
        state: AttemptState::Reserved,
        epoch: i64::from(number),
        pod_uid: None,
        pod_name: None,
        node: None,
        revision: None,
        identity: None,
        spent: false,
        turn_at_start: 0,
        turn_at_end: None,
        reserved_at: ago(120),
        created_at: None,
        scheduled_at: None,
        attached_at: None,
        lease_renewed_at: None,
        ended_at: None,
        end: None,
    }
}

impl Past {
    pub fn ago(mut self, seconds: i64) -> Self {
        self.0.ended_at = Some(ago(seconds));
        self
    }

    pub fn said(mut self, message: &str) -> Self {
        self.end().message = message.to_owned();
        self
    }

    pub fn exit_code(mut self, code: i32) -> Self {
        self.end().exit_code = Some(code);
        self
    }

    pub fn after_turn(mut self, turn: i32) -> Self {
        self.0.turn_at_end = Some(turn);
        self
    }

    pub fn attached(mut self, seconds_ago: i64) -> Self {
        self.0.attached_at = Some(ago(seconds_ago));
        self
    }

    pub fn on(mut self, node: &str) -> Self {
        self.0.node = Some(node.to_owned());
        self
    }

    /// It was made from this template, and its image was this one.
    pub fn was(mut self, revision: &str, image: char) -> Self {
        self.0.revision = Some(revision.to_owned());
        self.0.identity = Some(identity(None, image));
        self
    }

    fn end(&mut self) -> &mut AttemptEnd {
        self.0.end.as_mut().unwrap()
    }
}

/// An image that was accepted, and declares nothing.
pub fn accepted(image: char) -> Identity {
    identity(None, image)
}

/// An image that was accepted.
pub fn identity(declared: Option<&str>, image: char) -> Identity {
    Identity {
        image_digest: digest(image),
        agent_version: declared.map_or_else(|| digest(image), str::to_owned),
        verdict: Verdict::Accepted,
        remark: String::new(),
    }
}
