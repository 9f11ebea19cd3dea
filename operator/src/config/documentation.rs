//! Every command line of this program in the documentation, the chart and the messages is one that the program accepts.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

use std::fs;
use std::path::{Path, PathBuf};

use clap::Parser as _;
use clap::error::ErrorKind;
use dalsegno_core::CliLocation;
use dalsegno_core::recovery::Hold;
use dalsegno_core::remedy::{HeldRun, describe};
use dalsegno_crds::{AgentRun, Reason};

use super::Cli;

/// Deployments of the chart.
const DEPLOYMENTS: [&str; 2] = ["deployment/dalsegno", "deployment/dalsegno-gateway"];

/// A command line, and where it is written.
#[derive(Debug)]
struct Found {
    place: String,
    words: Vec<String>,
}

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Files below these paths whose names end in one of these endings.
fn files(paths: &[&str], endings: &[&str]) -> Vec<PathBuf> {
    let mut open: Vec<PathBuf> = paths.iter().map(|path| workspace().join(path)).collect();
    let mut found = Vec::new();
    while let Some(path) = open.pop() {
        if path.is_dir() {
            open.extend(fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()));
        } else if endings.iter().any(|it| path.to_string_lossy().ends_with(it)) {
            found.push(path);
        }
    }
    assert!(!found.is_empty());
    found
}

fn pages() -> Vec<PathBuf> {
    let pages = ["README.md", "CONTRIBUTING.md", "docs", "charts", "deploy", "sdk", "e2e/README.md"];
    files(&pages, &[".md", "NOTES.txt", "values.yaml"])
}

/// Splits a line as a shell does, up to a comment, a redirection or the next command.
fn split(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    let mut chars = line.chars();
    while let Some(it) = chars.next() {
        match (it, quote) {
            (_, Some(open)) if it == open => quote = None,
            (_, Some(_)) => word.get_or_insert_default().push(it),
            ('\'' | '"', None) => {
                quote = Some(it);
                word.get_or_insert_default();
            }
            ('\\', None) => word.get_or_insert_default().extend(chars.next()),
            ('#', None) if word.is_none() => break,
            ('|' | '>' | '<' | '&' | ';' | ')', None) => break,
            (_, None) if it.is_whitespace() => words.extend(word.take()),
            (_, None) => word.get_or_insert_default().push(it),
        }
    }
    words.extend(word);
    words
}

/// Lines of code blocks, whole even if they are continued by a backslash.
fn code_lines(page: &str) -> Vec<String> {
    let blocks = page.split("```").skip(1).step_by(2);
    let joined = blocks.flat_map(|block| {
        let block = block.replace("\\\n", " ");
        block.lines().map(|line| line.trim_start_matches("$ ").to_owned()).collect::<Vec<_>>()
    });
    joined.collect()
}

/// The words of this program's command in a line, without its name: in the operator's pod, or on this machine.
fn command(line: &str) -> Option<Vec<String>> {
    let words = split(line);
    let is_assignment = |it: &String| {
        it.split_once('=')
            .is_some_and(|(name, _)| name.chars().all(|it| it.is_ascii_uppercase() || it == '_'))
    };
    let start = words.iter().position(|it| !is_assignment(it))?;
    let at = match words[start].as_str() {
        "dalsegno" => start,
        "kubectl" => words.iter().position(|it| it == "/dalsegno")?,
        _ => return None,
    };
    Some(words[at + 1..].to_vec())
}

/// The commands of code blocks, and of texts in back-ticks. The second ones may leave out arguments.
fn commands() -> (Vec<Found>, Vec<Found>) {
    let (mut whole, mut short) = (Vec::new(), Vec::new());
    for path in pages() {
        let (place, text) = (path.display().to_string(), fs::read_to_string(&path).unwrap());
        let found = |words| Found { place: place.clone(), words };
        whole.extend(code_lines(&text).iter().filter_map(|line| command(line)).map(found));
        let prose: String = text.split("```").step_by(2).collect();
        short.extend(quoted(&prose).map(found));
    }
    for path in files(&["operator", "crds"], &[".rs"]) {
        if path.components().any(|it| matches!(it.as_os_str().to_str(), Some("tests" | "target"))) {
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        let text =
            text.replace("\\\n", " ").replace("\n///", " ").replace("\n//!", " ").replace("\n    ///", " ");
        short.extend(quoted(&text).map(|words| Found { place: path.display().to_string(), words }));
    }
    (whole, short)
}

/// The commands in back-ticks.
fn quoted(text: &str) -> impl Iterator<Item = Vec<String>> {
    let quoted = text.split('`').skip(1).step_by(2).filter(|it| it.len() < 300);
    quoted.filter_map(|it| command(it.trim())).filter(|words| !words.is_empty())
}

/// Parses a command with values for what a reader fills in.
fn parse(words: &[String]) -> Result<Cli, clap::Error> {
    let fill_in = |word: &String| match word.as_str() {
        "$KEY" => "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=".to_owned(),
        // Any file that exists.
        word if word.ends_with(".jsonl") && words[0] == "verify" => {
            concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml").to_owned()
        }
        word => word.to_owned(),
    };
    let mut words: Vec<String> = words.iter().map(fill_in).collect();
    // The operator's pod, and the environment of the other commands, name the database.
    let options = words.iter().position(|it| it == "--").unwrap_or(words.len());
    let needs_database = !matches!(words[0].as_str(), "dev" | "crds" | "verify");
    if needs_database && !words.iter().any(|it| it == "--database-url") {
        words.splice(options..options, ["--database-url".to_owned(), "sqlite:///x".to_owned()]);
    }
    Cli::try_parse_from([vec!["dalsegno".to_owned()], words].concat())
}

#[test]
fn the_program_accepts_every_command_of_the_documentation() {
    let (whole, _) = commands();
    assert!(whole.len() > 25, "{whole:?}");
    let wrong: Vec<String> = whole
        .iter()
        .filter_map(|Found { place, words }| Some(format!("{place}: {words:?}: {}", parse(words).err()?)))
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_program_knows_every_verb_and_flag_that_a_text_names() {
    let (_, short) = commands();
    assert!(short.len() > 40, "{}", short.len());
    let is_unknown = |error: &clap::Error| {
        matches!(error.kind(), ErrorKind::UnknownArgument | ErrorKind::InvalidSubcommand)
    };
    let wrong: Vec<String> = short
        .iter()
        .filter_map(|Found { place, words }| {
            let words = words.iter().filter(|it| !it.contains('…'));
            let words: Vec<&str> = std::iter::once("dalsegno").chain(words.map(String::as_str)).collect();
            let error = Cli::try_parse_from(&words).err().filter(is_unknown)?;
            Some(format!("{place}: {words:?}: {error}"))
        })
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_kubectl_command_about_a_deployment_names_its_namespace_and_one_of_the_charts_names() {
    let mut checked = 0;
    for path in pages() {
        for line in code_lines(&fs::read_to_string(&path).unwrap()) {
            let words = split(&line);
            let named: Vec<&String> = words.iter().filter(|it| it.starts_with("deployment/")).collect();
            if words.first().is_none_or(|it| it != "kubectl") || named.is_empty() {
                continue;
            }
            let place = format!("{}: {line}", path.display());
            assert!(named.iter().all(|it| DEPLOYMENTS.contains(&it.as_str())), "{place}");
            assert!(words.iter().any(|it| it == "--namespace"), "{place}");
            checked += 1;
        }
    }
    assert!(checked > 10, "{checked}");
}

#[test]
fn the_chart_has_the_deployments_that_commands_name_and_says_in_which_namespace_they_are() {
    for (file, name) in [("deployment.yaml", "dalsegno"), ("gateway.yaml", "dalsegno-gateway")] {
        let template = fs::read_to_string(workspace().join("charts/dalsegno/templates").join(file)).unwrap();
        assert!(template.contains(&format!("kind: Deployment\nmetadata:\n  name: {name}\n")), "{file}");
    }
    let helpers = fs::read_to_string(workspace().join("charts/dalsegno/templates/_helpers.tpl")).unwrap();
    let namespace =
        "- name: DALSEGNO_NAMESPACE\n  valueFrom:\n    fieldRef:\n      fieldPath: metadata.namespace\n";
    assert!(helpers.contains(namespace));
    let shown = CliLocation::Pod { namespace: "tools".to_owned() }.command("show", &["shop/nightly"]);
    assert_eq!(shown, "kubectl exec --namespace tools deployment/dalsegno -- /dalsegno show shop/nightly");
}

#[test]
fn the_program_accepts_the_command_that_a_held_run_shows() {
    let mut run = AgentRun::new("nightly", Default::default());
    run.metadata.namespace = Some("shop".to_owned());
    let places = [
        CliLocation::Pod { namespace: "dalsegno-system".to_owned() },
        CliLocation::Local { store_url: "sqlite:///home/my files/runs.db".to_owned() },
    ];
    for id in ["pay-ann", "it's $(id) \"now\"", "--by", "-1"] {
        for cli in &places {
            let calls = [id.to_owned()];
            let held = HeldRun { run: &run, row: None, calls: &calls, is_external: false };
            let text = describe(&Hold::new(Reason::EffectUnknown, ""), held, cli);
            let shown = text.split('`').find_map(command).unwrap();
            let Ok(Cli { command: super::Command::Settle(args) }) = parse(&shown) else {
                panic!("{shown:?}")
            };
            assert_eq!((args.call.as_str(), args.run.to_string().as_str()), (id, "shop/nightly"));
        }
    }
}

#[test]
fn a_line_is_split_as_a_shell_does() {
    let line = r#"X=1 dalsegno settle a/b 'it'\''s' --by "$USER" # a comment"#;
    assert_eq!(split(line), ["X=1", "dalsegno", "settle", "a/b", "it's", "--by", "$USER"]);
    assert_eq!(command("dalsegno export a/b > file").unwrap(), ["export", "a/b"]);
    assert_eq!(command("kubectl exec deployment/dalsegno -- /dalsegno show a/b").unwrap(), ["show", "a/b"]);
    assert_eq!(command("the dalsegno is"), None);
}
