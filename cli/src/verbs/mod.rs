//! One file for each verb, or for verbs that are two sides of one thing.

mod approvals;
mod attempts;
mod branch;
mod calls;
mod completion;
mod decide;
mod events;
mod explain;
mod export;
mod list;
mod logs;
mod operating_mode;
mod reset;
mod send;
mod settle;
mod state;
mod status;
mod turns;
mod verify;
mod wait;

use crate::args::{Cli, Verb};
use crate::failure::Result;
use crate::output::Output;
use crate::session::Session;

/// Runs the verb of a command line.
pub async fn run(cli: Cli, output: &mut Output) -> Result {
    let Cli { global, verb } = cli;
    // These need no cluster.
    match &verb {
        Verb::Verify(args) => return verify::run(args, output),
        Verb::Completion(args) => {
            completion::run(args, output);
            return Ok(());
        }
        Verb::Complete(args) => {
            completion::complete(&global, args, output).await;
            return Ok(());
        }
        _ => {}
    }
    let session = Session::connect(&global).await?;
    match verb {
        Verb::List(args) => list::run(&session, &args, output).await,
        Verb::Status(args) => status::run(&session, &args, output).await,
        Verb::Turns(args) => turns::run(&session, &args, output).await,
        Verb::State(args) => state::run(&session, &args, output).await,
        Verb::Events(args) => events::run(&session, &args, output).await,
        Verb::Logs(args) => logs::run(&session, &args, output).await,
        Verb::Attempts(args) => attempts::run(&session, &args, output).await,
        Verb::Calls(args) => calls::run(&session, &args, output).await,
        Verb::Suspend(args) => operating_mode::suspend(&session, &args, output).await,
        Verb::Resume(args) => operating_mode::resume(&session, &args, output).await,
        Verb::Send(args) => send::run(&session, &args, output).await,
        Verb::Approvals(args) => approvals::run(&session, &args, output).await,
        Verb::Approve(args) => decide::approve(&session, &args, output).await,
        Verb::Deny(args) => decide::deny(&session, &args, output).await,
        Verb::Rewind(args) => branch::rewind(&session, &args, output).await,
        Verb::Fork(args) => branch::fork(&session, &args, output).await,
        Verb::Cancel(args) => operating_mode::cancel(&session, &args, output).await,
        Verb::Settle(args) => settle::run(&session, &args, output).await,
        Verb::Reset(args) => reset::run(&session, &args, output).await,
        Verb::Export(args) => export::run(&session, &args, output).await,
        Verb::Explain(args) => explain::run(&session, &args, output).await,
        Verb::Wait(args) => wait::run(&session, &args, output).await,
        Verb::Verify(_) | Verb::Completion(_) | Verb::Complete(_) => Ok(()),
    }
}
