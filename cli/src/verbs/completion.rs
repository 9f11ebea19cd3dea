//! `completion`: scripts that complete commands, and the candidates for kubectl's own completion.

use std::time::Duration;

use clap::CommandFactory as _;
use kube::ResourceExt as _;

use crate::args::{Cli, CompleteArgs, CompletionArgs, GlobalArgs};
use crate::output::Output;
use crate::runs::{self, Scope};
use crate::session::Session;

/// How long names are looked for while a person types.
const NAMES_TIMEOUT: Duration = Duration::from_secs(2);

/// kubectl calls a program of this name, and reads candidates and a directive from it.
const OF_KUBECTL: &str = "#!/bin/sh\n\
# kubectl completes `kubectl dalsegno` with this program: save it as kubectl_complete-dalsegno in a folder of $PATH.\n\
exec kubectl-dalsegno __complete -- \"$@\"\n";

/// kubectl's directive: these are all candidates, no files.
const NO_FILES: &str = ":4";

/// Verbs whose first word is no name of a run.
const WITHOUT_RUN: [&str; 4] = ["list", "verify", "completion", "help"];

/// Prints a script.
pub fn run(args: &CompletionArgs, output: &mut Output) {
    let Some(shell) = args.shell.shell() else { return output.write(OF_KUBECTL.as_bytes()) };
    let mut command = Cli::command();
    command.set_bin_name("kubectl-dalsegno");
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, "kubectl-dalsegno", &mut script);
    output.write(&script);
}

/// Prints the candidates for the last word.
pub async fn complete(global: &GlobalArgs, args: &CompleteArgs, output: &mut Output) {
    let (typed, before) = args.words.split_last().map_or(("", &[][..]), |(last, rest)| (last.as_str(), rest));
    let mut found = static_candidates(before, typed);
    if found.is_empty() && wants_run(before) && !typed.starts_with('-') {
        let global = with_namespace(global, before);
        let names = tokio::time::timeout(NAMES_TIMEOUT, names(&global)).await.unwrap_or_default();
        found = names.into_iter().filter(|it| it.starts_with(typed)).collect();
    }
    found.iter().for_each(|it| output.print(it));
    output.print(NO_FILES);
}

/// Verbs for the first word, options for a word that begins with a dash.
fn static_candidates(before: &[String], typed: &str) -> Vec<String> {
    let command = Cli::command();
    let verb = before.iter().find_map(|word| command.find_subcommand(word));
    if typed.starts_with('-') {
        let own = verb.into_iter().flat_map(clap::Command::get_arguments);
        let options = own.chain(command.get_arguments()).filter_map(|it| it.get_long());
        let options = options.map(|it| format!("--{it}"));
        return options.filter(|it| it.starts_with(typed)).collect();
    }
    if verb.is_some() {
        return Vec::new();
    }
    let verbs = command.get_subcommands().filter(|it| !it.is_hide_set());
    let describe = |it: &clap::Command| {
        format!("{}\t{}", it.get_name(), it.get_about().map(ToString::to_string).unwrap_or_default())
    };
    verbs.filter(|it| it.get_name().starts_with(typed)).map(describe).collect()
}

/// Whether the word that is being typed is the name of a run: the first word after a verb that takes one.
fn wants_run(before: &[String]) -> bool {
    let command = Cli::command();
    let Some(at) = before.iter().position(|word| command.find_subcommand(word).is_some()) else {
        return false;
    };
    let after = before[at + 1..].iter().any(|word| !word.starts_with('-'));
    !after && !WITHOUT_RUN.contains(&before[at].as_str())
}

/// The namespace that was typed before.
fn with_namespace(global: &GlobalArgs, before: &[String]) -> GlobalArgs {
    let mut global = global.clone();
    let at = before.iter().position(|word| word == "-n" || word == "--namespace");
    if let Some(namespace) = at.and_then(|at| before.get(at + 1)) {
        global.namespace = Some(namespace.clone());
    }
    global
}

async fn names(global: &GlobalArgs) -> Vec<String> {
    let Ok(session) = Session::connect(global).await else { return Vec::new() };
    let found = runs::list(&session, Scope::default()).await.unwrap_or_default();
    found.into_iter().map(|it| it.object.name_any()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::CompletionShell;
    use crate::output::Format;

    fn words(text: &str) -> Vec<String> {
        text.split(' ').filter(|it| !it.is_empty()).map(str::to_owned).collect()
    }

    #[test]
    fn verbs_and_options_are_completed() {
        let verbs = static_candidates(&[], "re");
        let names: Vec<_> = verbs.iter().filter_map(|it| it.split('\t').next()).collect();
        assert_eq!(names, ["resume", "rewind", "reset"]);
        assert_eq!(static_candidates(&words("suspend nightly"), "--rea"), ["--reason"]);
        assert!(static_candidates(&words("suspend"), "nig").is_empty());
        assert!(static_candidates(&[], "").iter().all(|it| !it.starts_with("__")));
    }

    #[test]
    fn names_of_runs_are_completed_where_a_run_is_expected() {
        for (before, expected) in
            [("status", true), ("suspend", true), ("suspend nightly", false), ("list", false), ("", false)]
        {
            assert_eq!(wants_run(&words(before)), expected, "{before}");
        }
        let global = with_namespace(&GlobalArgs::default(), &words("-n shop status"));
        assert_eq!(global.namespace.as_deref(), Some("shop"));
    }

    #[test]
    fn every_shell_has_a_script() {
        for (shell, part) in [
            (CompletionShell::Bash, "complete -F"),
            (CompletionShell::Zsh, "#compdef kubectl-dalsegno"),
            (CompletionShell::Kubectl, "kubectl-dalsegno __complete"),
        ] {
            let mut output = Output::kept(Format::Text, 80, jiff::Timestamp::UNIX_EPOCH);
            run(&CompletionArgs { shell }, &mut output);
            assert!(output.text().contains(part), "{}", output.text());
        }
    }
}
