//! The log: which lines of which modules, and the text of an error.

use anyhow::Context as _;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// Logs JSON lines to standard error. The filter is the value of `DALSEGNO_LOG`, such as `info` or `info,dalsegno=debug`.
///
/// # Errors
///
/// The filter is invalid.
pub fn init(filter: &str) -> anyhow::Result<()> {
    let targets = parse_filter(filter)?;
    let json = tracing_subscriber::fmt::layer().json().with_writer(std::io::stderr).flatten_event(true);
    tracing_subscriber::registry().with(targets).with(json).init();
    Ok(())
}

/// Parses a filter. Modules without a level of their own get the common level, which is `info` by default.
///
/// Not the parser of `tracing_subscriber`: it takes an unknown level for the name of a module, and then logs nothing else.
fn parse_filter(filter: &str) -> anyhow::Result<Targets> {
    let level = |word: &str| {
        let word = word.trim();
        word.parse::<LevelFilter>().ok().filter(|_| !word.is_empty()).with_context(|| {
            format!(
                "{word:?} is not a level: write error, warn, info, debug, trace or off, and a module's own level after a \
                 comma, as in `info,dalsegno_store=debug`"
            )
        })
    };
    let info = Targets::new().with_default(LevelFilter::INFO);
    filter.split(',').try_fold(info, |targets, part| match part.split_once('=') {
        None => Ok(targets.with_default(level(part)?)),
        Some((module, word)) => Ok(targets.with_target(module.trim(), level(word)?)),
    })
}

/// The message of an error and of all its sources, in one line.
pub fn error_chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        text = format!("{text}: {inner}");
        source = inner.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracing::Level;

    #[test]
    fn a_module_has_its_own_level_and_all_others_have_the_common_one() {
        for (what, ours, others) in [
            ("info", Level::INFO, Level::INFO),
            ("info,dalsegno=debug", Level::DEBUG, Level::INFO),
            ("warn, dalsegno = trace", Level::TRACE, Level::WARN),
            ("dalsegno_store=debug", Level::DEBUG, Level::INFO),
        ] {
            let targets = parse_filter(what).expect(what);
            for (module, level) in [("dalsegno_store::sqlite", ours), ("hyper::client", others)] {
                let quieter = [Level::ERROR, Level::WARN, Level::INFO, Level::DEBUG, Level::TRACE];
                for at in quieter {
                    assert_eq!(targets.would_enable(module, &at), at <= level, "{what}: {module} at {at}");
                }
            }
        }
    }

    #[test]
    fn an_unknown_level_is_rejected_with_the_list_of_levels() {
        for what in ["", "verbose", "info,", "info,dalsegno", "info,dalsegno=loud", "dalsegno=", "a=b=info"] {
            let refused = parse_filter(what).expect_err(what).to_string();
            assert!(refused.contains("write error, warn, info, debug, trace or off"), "{what:?}: {refused}");
        }
    }
}
