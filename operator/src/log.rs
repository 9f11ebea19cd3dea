//! What the program logs, and of which of its modules.

use anyhow::Context as _;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// Logs as JSON lines on standard error: what of which module, as `DALSEGNO_LOG` says it (`info`, `info,dalsegno=debug`).
///
/// # Errors
///
/// It says something else.
pub fn begin(what: &str) -> anyhow::Result<()> {
    let which = targets(what)?;
    let json = tracing_subscriber::fmt::layer().json().with_writer(std::io::stderr).flatten_event(true);
    tracing_subscriber::registry().with(which).with(json).init();
    Ok(())
}

/// What is not named is logged from `info` on. Spelt out: the crate's own parser takes a word that is no level for the name of
/// a module, and then nothing else is logged.
fn targets(what: &str) -> anyhow::Result<Targets> {
    let level = |word: &str| {
        let word = word.trim();
        word.parse::<LevelFilter>().ok().filter(|_| !word.is_empty()).with_context(|| {
            format!(
                "{word:?} is no level: write error, warn, info, debug, trace or off, and a module's own level after a \
                 comma, as in `info,dalsegno_store=debug`"
            )
        })
    };
    let info = Targets::new().with_default(LevelFilter::INFO);
    what.split(',').try_fold(info, |targets, part| match part.split_once('=') {
        None => Ok(targets.with_default(level(part)?)),
        Some((module, its)) => Ok(targets.with_target(module.trim(), level(its)?)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracing::Level;

    #[test]
    fn a_module_has_a_level_of_its_own_and_all_others_the_common_one() {
        for (what, ours, others) in [
            ("info", Level::INFO, Level::INFO),
            ("info,dalsegno=debug", Level::DEBUG, Level::INFO),
            ("warn, dalsegno = trace", Level::TRACE, Level::WARN),
            ("dalsegno_store=debug", Level::DEBUG, Level::INFO),
        ] {
            let targets = targets(what).expect(what);
            for (module, level) in [("dalsegno_store::sqlite", ours), ("hyper::client", others)] {
                let quieter = [Level::ERROR, Level::WARN, Level::INFO, Level::DEBUG, Level::TRACE];
                for at in quieter {
                    assert_eq!(targets.would_enable(module, &at), at <= level, "{what}: {module} at {at}");
                }
            }
        }
    }

    #[test]
    fn what_is_no_level_is_refused_and_says_what_to_write() {
        for what in ["", "verbose", "info,", "info,dalsegno", "info,dalsegno=loud", "dalsegno=", "a=b=info"] {
            let refused = targets(what).expect_err(what).to_string();
            assert!(refused.contains("write error, warn, info, debug, trace or off"), "{what:?}: {refused}");
        }
    }
}
