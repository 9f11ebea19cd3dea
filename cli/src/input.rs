//! Values of options: JSON, files, durations.

use std::io::Read as _;
use std::path::Path;
use std::time::Duration;

use dalsegno_protocol::RawValue;

use crate::failure::{Exit, Failure, Result};

/// JSON from the command line, or from `@FILE`, byte for byte. `option` names the option in errors.
pub fn json(option: &str, text: &str) -> Result<Box<RawValue>> {
    let read;
    let text = match text.strip_prefix('@') {
        Some(path) => {
            let path = Path::new(path);
            read =
                std::fs::read_to_string(path).map_err(|error| Failure::of_file("reading", path, &error))?;
            read.trim()
        }
        None => text,
    };
    parse_json(option, text)
}

/// Parses JSON.
pub fn parse_json(option: &str, text: &str) -> Result<Box<RawValue>> {
    serde_json::from_str(text).map_err(|error| {
        Failure::usage(
            format!("{option} is not JSON: {error}"),
            format!("write JSON, such as {option} '{{\"cents\": 300}}'; a text needs quotes: '\"yes\"'"),
        )
    })
}

/// The standard input, as text.
pub fn standard_input() -> Result<String> {
    let mut text = String::new();
    std::io::stdin().lock().read_to_string(&mut text).map_err(|error| {
        Failure::new(
            Exit::Failed,
            format!("the standard input cannot be read: {error}"),
            "give the text as an argument",
        )
    })?;
    Ok(text)
}

/// A duration such as `90s`, `5m` or `1h`. `None`: 0, which stands for ever.
pub fn duration(option: &str, text: &str) -> Result<Option<Duration>> {
    let text = if text.bytes().all(|it| it.is_ascii_digit()) { format!("{text}s") } else { text.to_owned() };
    let parsed = text.parse::<jiff::SignedDuration>().ok().and_then(|it| Duration::try_from(it).ok());
    let wrong =
        || Failure::usage(format!("{text:?} is not a duration"), format!("write {option} 90s, 5m or 1h"));
    let parsed = parsed.ok_or_else(wrong)?;
    Ok(Some(parsed).filter(|it| !it.is_zero()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_and_zero_is_for_ever() {
        assert_eq!(duration("--timeout", "90s").unwrap(), Some(Duration::from_secs(90)));
        assert_eq!(duration("--timeout", "5m").unwrap(), Some(Duration::from_secs(300)));
        assert_eq!(duration("--timeout", "7").unwrap(), Some(Duration::from_secs(7)));
        assert_eq!(duration("--timeout", "0").unwrap(), None);
        for text in ["", "soon", "-5m"] {
            assert_eq!(duration("--timeout", text).unwrap_err().exit, Exit::Usage, "{text}");
        }
    }

    #[test]
    fn json_is_kept_as_it_was_written() {
        assert_eq!(json("--changes", "{\"cents\": 1.0}").unwrap().get(), "{\"cents\": 1.0}");
        let failure = json("--changes", "cents").unwrap_err();
        assert!(failure.next.contains("--changes") && failure.exit == Exit::Usage, "{failure}");
        assert!(json("--result", "@/no/such/file").unwrap_err().what.contains("/no/such/file"));
    }
}
