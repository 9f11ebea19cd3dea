//! `kubectl dalsegno`: find, understand, stop, answer and repair the runs of agents.
//!
//! | module | what it is |
//! |---|---|
//! | `args` | the command line |
//! | `verbs` | one file for each verb |
//! | `runs`, `approvals` | AgentRuns and AgentApprovals, as the API server has them |
//! | `doors` | what a run has committed, through the aggregated API or the gateway |
//! | `advice` | what happens next to a run, and the command that a person types |
//! | `output` | text for people, escaped and within the terminal; documents for programs |
//! | `failure` | errors with what to do next, and the exit codes |

mod advice;
mod approvals;
mod args;
mod confirm;
mod doors;
mod failure;
mod input;
mod output;
mod proposal;
mod runs;
mod session;
mod verbs;

use std::process::ExitCode;

use clap::Parser as _;

use crate::args::Cli;
use crate::output::{Output, print_error};

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    // Several TLS providers may be linked in by a build of the whole workspace. kube does not choose one by itself.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let cli = Cli::parse();
    let mut output = Output::standard(cli.global.output);
    match verbs::run(cli, &mut output).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            print_error(&failure.to_string());
            ExitCode::from(failure.exit.code())
        }
    }
}
