//! Errors for people: what went wrong, what to do next, and the exit code for scripts.

use std::fmt;

/// The exit codes. `docs/guides/kubectl.md` lists them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Another error.
    Failed = 1,
    /// The command line is wrong. clap uses the same code.
    Usage = 2,
    /// There is no such run, approval, call, turn or kind.
    NotFound = 3,
    /// The user lacks a right, or is not known.
    Forbidden = 4,
    /// Neither door to the store can be used.
    NoDoor = 5,
    /// The request contradicts the state of the run: it is over, or it was decided before.
    Refused = 6,
    /// The API server, the gateway or the store does not respond.
    Unavailable = 7,
    /// The time is over before what was awaited.
    TimedOut = 8,
    /// What was checked differs from what was written.
    Differs = 9,
    /// What was awaited can no longer happen.
    NeverAgain = 10,
}

impl Exit {
    /// Every code with its meaning, in the order of the documentation.
    #[cfg(test)]
    pub const ALL: [Self; 10] = [
        Self::Failed,
        Self::Usage,
        Self::NotFound,
        Self::Forbidden,
        Self::NoDoor,
        Self::Refused,
        Self::Unavailable,
        Self::TimedOut,
        Self::Differs,
        Self::NeverAgain,
    ];

    /// The number.
    pub fn code(self) -> u8 {
        self as u8
    }
}

/// An error of a verb.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// For scripts.
    pub exit: Exit,
    /// What went wrong.
    pub what: String,
    /// What the person does next. Never empty.
    pub next: String,
}

/// The result of a verb.
pub type Result<T = ()> = std::result::Result<T, Failure>;

impl Failure {
    /// An error, and what to do next.
    pub fn new(exit: Exit, what: impl Into<String>, next: impl Into<String>) -> Self {
        Self { exit, what: what.into(), next: next.into() }
    }

    /// A wrong command line.
    pub fn usage(what: impl Into<String>, next: impl Into<String>) -> Self {
        Self::new(Exit::Usage, what, next)
    }

    /// A failed request to the API server. `doing` says what it was for, such as `reading the AgentRun`.
    pub fn of_api(doing: &str, error: &kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => Self::of_status(doing, status.code, &status.message),
            kube::Error::Auth(error) => Self::new(
                Exit::Forbidden,
                format!("{doing}: the credentials of the kubeconfig cannot be used: {error}"),
                "log in to the cluster again, then check with `kubectl auth whoami`",
            ),
            error => Self::new(
                Exit::Unavailable,
                format!("{doing}: the API server does not answer: {}", chain(error)),
                "check the context with `kubectl config current-context`, and the cluster with `kubectl version`",
            ),
        }
    }

    /// An answer of the API server with this code.
    pub fn of_status(doing: &str, code: u16, message: &str) -> Self {
        let what = format!("{doing}: {}", message.trim());
        match code {
            401 => Self::new(
                Exit::Forbidden,
                what,
                "log in to the cluster again, then check with `kubectl auth whoami`",
            ),
            403 => Self::new(
                Exit::Forbidden,
                what,
                "ask an administrator for the right that the message names; `kubectl auth can-i --list` shows yours",
            ),
            404 if message.contains("could not find the requested resource")
                || message.contains("page not found") =>
            {
                Self::new(
                    Exit::NotFound,
                    format!("{doing}: this cluster does not know the kinds of Dal Segno"),
                    "check the context with `kubectl config current-context`, or install the chart charts/dalsegno",
                )
            }
            404 => Self::new(Exit::NotFound, what, "check the name, the namespace (-n) and the context"),
            409 => Self::new(Exit::Refused, what, "look at the object again, then repeat the command"),
            400 | 422 => {
                Self::new(Exit::Refused, what, "correct what the message names, then repeat the command")
            }
            429 | 500.. => Self::new(Exit::Unavailable, what, "repeat the command in a few seconds"),
            _ => Self::new(Exit::Failed, what, "repeat the command; if it fails again, ask an administrator"),
        }
    }

    /// A file of the user that cannot be read or written.
    pub fn of_file(doing: &str, path: &std::path::Path, error: &std::io::Error) -> Self {
        Self::new(
            Exit::Failed,
            format!("{doing} {}: {error}", path.display()),
            "check the path and your rights to it, then repeat the command",
        )
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error: {}\nnext:  {}", self.what, self.next)
    }
}

/// An error with its causes.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_answer_of_the_api_server_leads_to_a_next_step() {
        for code in [0, 400, 401, 403, 404, 405, 409, 410, 422, 429, 500, 503, 504] {
            let failure = Failure::of_status("reading", code, "a message");
            assert!(!failure.next.is_empty() && failure.what.starts_with("reading: "), "{code}: {failure}");
        }
    }

    #[test]
    fn the_guide_lists_every_exit_code() {
        let guide = include_str!("../../docs/guides/kubectl.md");
        for exit in Exit::ALL {
            assert!(guide.contains(&format!("\n| {} | ", exit.code())), "{exit:?}");
        }
    }
}
