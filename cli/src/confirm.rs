//! Questions before what cannot be taken back.

use std::io::{self, BufRead as _, IsTerminal as _, Write as _};

use crate::failure::{Exit, Failure, Result};
use crate::output::escape;

/// Asks on the terminal. Fails if the answer is not yes, or if nobody can be asked; `next` says what to do then.
pub fn confirm(question: &str, next: &str) -> Result {
    if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
        return Err(Failure::usage("nobody can be asked: the input or the output is no terminal", next));
    }
    let asked =
        write!(io::stderr(), "{} [y/N] ", escape::lines(question)).and_then(|()| io::stderr().flush());
    let mut answer = String::new();
    let read = asked.and_then(|()| io::stdin().lock().read_line(&mut answer));
    match read {
        Ok(_) if matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes") => Ok(()),
        Ok(_) => Err(Failure::new(Exit::Refused, "nothing was changed: the answer was not yes", next)),
        Err(error) => Err(Failure::new(Exit::Failed, format!("the terminal cannot be read: {error}"), next)),
    }
}
