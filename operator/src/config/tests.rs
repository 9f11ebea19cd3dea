//! The chart, the flags and the documentation name the same limits of a gateway.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

use std::collections::BTreeSet;

use clap::{CommandFactory as _, Parser as _};
use dalsegno_gateway::Config;
use serde_yaml::Value;

use super::{Cli, Command, KeyArgs};

const VALUES: &str = include_str!("../../../charts/dalsegno/values.yaml");
const PRODUCTION: &str = include_str!("../../../docs/guides/in-production.md");

/// The chart's value of each limit, and its flag.
const LIMITS: [(&str, &str); 8] = [
    ("connections.max", "--gateway-max-connections"),
    ("connections.maxPerPeer", "--gateway-max-connections-per-peer"),
    ("memory.requestBodies", "--gateway-request-bytes"),
    ("memory.responses", "--gateway-response-bytes"),
    ("memory.resumeReads", "--gateway-resume-bytes"),
    ("memory.inspectionReads", "--gateway-inspection-bytes"),
    ("memory.pageReads", "--gateway-page-bytes"),
    ("memory.deltaBases", "--gateway-delta-base-bytes"),
];

/// The gateway's configuration with these flags, or why they are refused.
fn config(flags: &[&str]) -> Result<Config, String> {
    let command = ["dalsegno", "gateway", "--database-url", "sqlite:///store.db"];
    let cli = Cli::try_parse_from(command.iter().chain(flags)).map_err(|error| error.to_string())?;
    match cli.command {
        Command::Gateway { gateway, .. } => Ok(gateway.config(&KeyArgs { signing_key: None })),
        other => panic!("{other:?}"),
    }
}

/// The chart's value at this path below `of`.
fn chart_value(of: &str, path: &str) -> String {
    let values: Value = serde_yaml::from_str(VALUES).unwrap();
    let value = path.split('.').fold(&values[of], |value, key| &value[key]);
    value.as_str().map_or_else(|| value.as_u64().unwrap().to_string(), str::to_owned)
}

/// The text in the first code span after `before` in the documentation.
fn documented(before: &str) -> &'static str {
    let (_, after) = PRODUCTION.split_once(before).unwrap_or_else(|| panic!("{before:?} is not documented"));
    after.split('`').nth(1).unwrap()
}

#[test]
fn the_flags_have_the_defaults_of_the_gateway() {
    assert_eq!(format!("{:?}", config(&[]).unwrap()), format!("{:?}", Config::default()));
}

#[test]
fn the_program_reads_every_variable_that_the_chart_sets() {
    const TEMPLATES: [&str; 3] = [
        include_str!("../../../charts/dalsegno/templates/_helpers.tpl"),
        include_str!("../../../charts/dalsegno/templates/deployment.yaml"),
        include_str!("../../../charts/dalsegno/templates/gateway.yaml"),
    ];
    // The log is set up before the arguments are parsed.
    let mut known = BTreeSet::from(["DALSEGNO_LOG".to_owned()]);
    let mut commands = vec![Cli::command()];
    while let Some(command) = commands.pop() {
        let variables = command.get_arguments().filter_map(|it| Some(it.get_env()?.to_str()?.to_owned()));
        known.extend(variables);
        commands.extend(command.get_subcommands().cloned());
    }
    let lines = TEMPLATES.iter().flat_map(|it| it.lines());
    let names =
        lines.filter_map(|it| it.trim().strip_prefix("- name: ")).filter(|it| it.starts_with("DALSEGNO_"));
    let set: BTreeSet<String> = names.map(str::to_owned).collect();
    assert!(set.len() > 20, "{set:?}");
    assert_eq!(set.difference(&known).collect::<Vec<_>>(), Vec::<&String>::new());
}

#[test]
fn the_chart_has_the_defaults_of_the_program() {
    for (value, flag) in LIMITS {
        let text = chart_value("gateway", value);
        let with_value = config(&[flag, &text]).unwrap();
        assert_eq!(format!("{with_value:?}"), format!("{:?}", Config::default()), "{value}={text}");
        let row = format!("`gateway.{value}` | `{flag}` |");
        assert_eq!(documented(&row), text, "the table of docs/guides/in-production.md");
    }
    let command =
        ["dalsegno", "operator", "--database-url", "sqlite:///store.db", "--gateway-url", "http://g"];
    let Command::Operator { operator, .. } = Cli::try_parse_from(command).unwrap().command else { panic!() };
    let of_chart = super::values::bytes::<0>(&chart_value("operator", "memory.stateReads")).unwrap();
    assert_eq!(operator.state_read_bytes, of_chart);
}

#[test]
fn the_chart_has_the_settings_of_the_allocator_with_which_the_memory_was_measured() {
    const CHART: &str = include_str!("../../../charts/dalsegno/templates/_helpers.tpl");
    const MEASURED: &str = include_str!("../../store/tests/support/child_process.rs");
    let (_, settings) = MEASURED.split_once("const ALLOCATOR").unwrap();
    let (settings, _) = settings.split_once("];").unwrap();
    // Names and values in turn, each between quotation marks.
    let texts: Vec<_> = settings.split('"').skip(1).step_by(2).collect();
    assert_eq!(texts.len(), 6);
    for setting in texts.chunks(2) {
        let entry = format!("- name: {}\n  value: \"{}\"\n", setting[0], setting[1]);
        assert!(CHART.contains(&entry), "{entry}");
    }
}

#[test]
fn every_limit_of_the_gateway_changes_the_memory_that_it_may_take() {
    let default = Config::default().memory_bytes();
    for (value, flag) in LIMITS.iter().filter(|(value, _)| *value != "connections.maxPerPeer") {
        let more = if value.starts_with("memory.") { "1Gi" } else { "100000" };
        assert!(config(&[flag, more]).unwrap().memory_bytes() > default, "{value}");
    }
}

#[test]
fn the_smallest_limits_of_reads_count_as_two_of_the_largest_states() {
    let memory = |reads| {
        let flags = ["--gateway-resume-bytes", reads, "--gateway-inspection-bytes", reads];
        config(&flags).unwrap().memory_bytes()
    };
    assert_eq!(memory("72Mi"), memory("128Mi"));
    assert_eq!(memory("129Mi") - memory("128Mi"), 4 << 20, "each of both counts twice");
}

#[test]
fn the_documented_memory_is_that_of_the_program() {
    let mebibytes = |config: &Config| format!("{}Mi", config.memory_bytes().div_ceil(1 << 20));
    assert_eq!(documented("With the defaults a gateway may take"), mebibytes(&Config::default()));
    let larger = ["--gateway-max-connections", "8192", "--gateway-request-bytes", "256Mi"];
    assert_eq!(
        documented("With 8,192 connections and `256Mi` of bodies it may take"),
        mebibytes(&config(&larger).unwrap())
    );
}

#[test]
fn a_limit_below_what_one_call_needs_is_refused() {
    for (flag, text, why) in [
        ("--gateway-request-bytes", "15Mi", "at least 16Mi"),
        ("--gateway-response-bytes", "159Mi", "at least 160Mi"),
        ("--gateway-page-bytes", "64Ki", "at least 4Mi"),
        ("--gateway-resume-bytes", "64M", "write a number of bytes"),
        ("--gateway-resume-bytes", "", "write a number of bytes"),
        ("--gateway-inspection-bytes", "99999999999999999999Gi", "write a number of bytes"),
    ] {
        let error = config(&[flag, text]).unwrap_err();
        assert!(error.contains(why), "{flag}={text}: {error}");
    }
    assert!(config(&["--gateway-delta-base-bytes", "0", "--gateway-request-bytes", "16777216"]).is_ok());
}
