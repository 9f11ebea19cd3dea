//! The log: which lines of which modules, and the text of an error.

use anyhow::Context as _;
use json_subscriber::JsonLayer;
use tracing::Subscriber;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::time::SystemTime;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;

/// Logs JSON lines to standard error. The filter is the value of `DALSEGNO_LOG`, such as `info` or `info,dalsegno=debug`.
///
/// # Errors
///
/// The filter is invalid.
pub fn init(filter: &str) -> anyhow::Result<()> {
    let targets = parse_filter(filter)?;
    tracing_subscriber::registry().with(targets).with(json_lines(std::io::stderr)).init();
    Ok(())
}

/// One flat JSON object per line: time, level, module, message, the event's fields, and those of the innermost span.
fn json_lines<S, W>(writer: W) -> JsonLayer<S, W>
where
    S: Subscriber + for<'lookup> LookupSpan<'lookup>,
    W: for<'writer> MakeWriter<'writer> + 'static,
{
    let mut lines = JsonLayer::new(writer);
    lines.with_timer("timestamp", SystemTime).with_level("level").with_target("target");
    lines.with_top_level_flattened_current_span().with_flattened_event();
    lines
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
    use std::io::Write;
    use std::sync::{Arc, Mutex};

    use super::*;
    use tracing::Level;

    /// A writer whose lines can be read.
    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().expect("a writer").write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_line_is_one_flat_object_that_names_its_run_once() {
        let lines = Lines::default();
        let writer = lines.clone();
        let subscriber = tracing_subscriber::registry().with(json_lines(move || writer.clone()));
        tracing::subscriber::with_default(subscriber, || {
            let _controller =
                tracing::info_span!("reconciling object", object.r#ref = "AgentRun/nightly").entered();
            let _reconcile = tracing::info_span!("reconcile", namespace = "shop", run = "nightly").entered();
            tracing::warn!(attempt = 3, "the attempt has ended");
        });
        let text = String::from_utf8(lines.0.lock().expect("a writer").clone()).expect("text");
        let line: serde_json::Value = serde_json::from_str(text.trim_end()).expect("one JSON object");
        let fields: Vec<_> = line.as_object().expect("an object").keys().map(String::as_str).collect();
        let expected = ["attempt", "level", "message", "name", "namespace", "run", "target", "timestamp"];
        assert_eq!(fields, expected, "{text}");
        assert_eq!((&line["level"], &line["run"]), (&"WARN".into(), &"nightly".into()));
    }

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
