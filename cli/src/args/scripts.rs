//! Arguments of the verbs for scripts and shells.

use clap::{Args, ValueEnum};
use clap_complete::Shell;

/// What to wait for.
#[derive(Clone, Debug, Args)]
pub struct WaitArgs {
    /// Name of the AgentRun.
    pub run: String,
    /// A summary (Succeeded, Held …), `ended`, `needs-you`, `turn=NUMBER`, `condition=TYPE[=STATUS]` or `deleted`.
    #[arg(long = "for", value_name = "STATE")]
    pub awaited: String,
    /// How long. 0: for ever.
    #[arg(long, value_name = "DURATION", default_value = "30m")]
    pub timeout: String,
}

/// A shell.
#[derive(Clone, Debug, Args)]
pub struct CompletionArgs {
    /// `bash` or `zsh` for kubectl-dalsegno; `kubectl` for the file kubectl_complete-dalsegno, with which kubectl's own
    /// completion also completes `kubectl dalsegno`.
    #[arg(value_enum)]
    pub shell: CompletionShell,
}

/// Who completes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CompletionShell {
    /// bash.
    Bash,
    /// zsh.
    Zsh,
    /// kubectl.
    Kubectl,
}

impl CompletionShell {
    /// The shell, if it is one.
    pub fn shell(self) -> Option<Shell> {
        match self {
            Self::Bash => Some(Shell::Bash),
            Self::Zsh => Some(Shell::Zsh),
            Self::Kubectl => None,
        }
    }
}

/// The words of a command line that is being typed.
#[derive(Clone, Debug, Args)]
pub struct CompleteArgs {
    /// The words after `kubectl dalsegno`; the last one is being typed.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub words: Vec<String>,
}
