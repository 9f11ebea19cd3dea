//! What verbs print: text for people, escaped and within the width of the terminal, or documents for programs.

pub mod changed;
pub mod escape;
pub mod table;
pub mod time;

use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write as _};

use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;

use crate::failure::{Exit, Failure, Result};

/// The form of the output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// Text for people.
    #[default]
    Text,
    /// The same with more columns, and nothing cut.
    Wide,
    /// Names alone, such as `agentrun.dalsegno.dev/nightly`.
    Name,
    /// JSON, with every character as it was written.
    Json,
    /// YAML.
    Yaml,
}

impl Format {
    /// Whether a program reads the output.
    pub fn is_document(self) -> bool {
        matches!(self, Self::Json | Self::Yaml)
    }
}

/// The emphasis of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// None.
    Plain,
    /// A heading.
    Bold,
    /// A person must act.
    Alarm,
    /// Less important.
    Dim,
}

impl Style {
    fn sgr(self) -> &'static str {
        match self {
            Self::Plain => "",
            Self::Bold => "\u{1b}[1m",
            Self::Alarm => "\u{1b}[1;31m",
            Self::Dim => "\u{1b}[2m",
        }
    }
}

/// Where a verb prints, and how.
#[derive(Clone, Debug)]
pub struct Output {
    /// The form.
    pub format: Format,
    /// Columns of the terminal. `None`: nothing is cut or wrapped.
    pub width: Option<usize>,
    /// Whether lines have a style.
    pub color: bool,
    /// The time that ages count from.
    pub now: Timestamp,
    /// What was printed, if it is kept and not written to the standard output.
    kept: Option<String>,
}

impl Output {
    /// The standard output: with the width and the colors of its terminal, if it is one.
    pub fn standard(format: Format) -> Self {
        let is_terminal = io::stdout().is_terminal();
        let width = terminal_size::terminal_size_of(io::stdout()).map(|(width, _)| usize::from(width.0));
        let of_environment =
            std::env::var("COLUMNS").ok().and_then(|it| it.parse().ok()).filter(|it| *it >= 20);
        let no_color = std::env::var_os("NO_COLOR").is_some_and(|it| !it.is_empty())
            || std::env::var("TERM").is_ok_and(|it| it == "dumb");
        let width = if format == Format::Wide { None } else { of_environment.or(width) };
        Self { format, width, color: is_terminal && !no_color, now: Timestamp::now(), kept: None }
    }

    /// An output that keeps what is printed, for tests.
    #[cfg(test)]
    pub fn kept(format: Format, width: usize, now: Timestamp) -> Self {
        Self { format, width: Some(width), color: false, now, kept: Some(String::new()) }
    }

    /// What was printed.
    #[cfg(test)]
    pub fn text(&self) -> &str {
        self.kept.as_deref().unwrap_or_default()
    }

    /// Prints text for people, which may have several lines.
    pub fn print(&mut self, text: &str) {
        self.print_styled(Style::Plain, text);
    }

    /// Prints text in a style.
    pub fn print_styled(&mut self, style: Style, text: &str) {
        let text = escape::lines(text);
        let shown = match (self.color, style) {
            (true, style) if style != Style::Plain => text.lines().fold(String::new(), |mut all, line| {
                let _ = writeln!(all, "{}{line}\u{1b}[0m", style.sgr());
                all
            }),
            _ => format!("{text}\n"),
        };
        self.write(shown.as_bytes());
    }

    /// Writes bytes as they are.
    pub fn write(&mut self, bytes: &[u8]) {
        match &mut self.kept {
            Some(kept) => kept.push_str(&String::from_utf8_lossy(bytes)),
            None => write_or_exit(bytes),
        }
    }

    /// Prints a sentence, wrapped.
    pub fn paragraph(&mut self, text: &str) {
        let text = escape::line(text);
        match self.width {
            Some(width) => self.print(&textwrap::fill(&text, width)),
            None => self.print(&text),
        }
    }

    /// Prints a label and a text beside it, wrapped. The text is shown on one paragraph, whatever it holds.
    pub fn field(&mut self, label: &str, text: &str) {
        const LABEL: usize = 11;
        let text = escape::line(text);
        let Some(width) = self.width.filter(|width| *width > LABEL + 20) else {
            return self.print(&format!("{label:<LABEL$}{text}"));
        };
        let indent = " ".repeat(LABEL);
        let first = format!("{label:<LABEL$}");
        let options = textwrap::Options::new(width)
            .initial_indent(&first)
            .subsequent_indent(&indent)
            .break_words(false)
            .word_splitter(textwrap::WordSplitter::NoHyphenation);
        let text = textwrap::fill(&text, options);
        self.print(&text);
    }

    /// Prints a field that a person copies: never wrapped.
    pub fn command(&mut self, label: &str, command: &str) {
        self.print(&format!("{label:<11}{}", escape::line(command)));
    }

    /// Prints a document for a program.
    pub fn document(&mut self, document: &impl Serialize) -> Result {
        let broken = |error: String| {
            Failure::new(
                Exit::Failed,
                format!("the output cannot be written: {error}"),
                "use another format with -o",
            )
        };
        let text = if self.format == Format::Yaml {
            let mut value = serde_json::to_value(document).map_err(|error| broken(error.to_string()))?;
            escape_strings(&mut value);
            serde_yaml::to_string(&value).map_err(|error| broken(error.to_string()))?
        } else {
            let mut text =
                serde_json::to_string_pretty(document).map_err(|error| broken(error.to_string()))?;
            text.push('\n');
            text
        };
        self.write(text.as_bytes());
        Ok(())
    }
}

/// Escapes the strings and the keys of a document. Line breaks stay.
fn escape_strings(value: &mut Value) {
    match value {
        Value::String(text) => *text = escape::lines(text),
        Value::Array(items) => items.iter_mut().for_each(escape_strings),
        Value::Object(fields) => {
            *fields = std::mem::take(fields)
                .into_iter()
                .map(|(key, mut value)| {
                    escape_strings(&mut value);
                    (escape::line(&key), value)
                })
                .collect();
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Exit code of a program that was killed by SIGPIPE. Rust programs ignore that signal.
const SIGPIPE: i32 = 128 + 13;

/// If the reader has closed the pipe, as in `| head -1`, the program exits silently, as other programs do.
fn write_or_exit(bytes: &[u8]) {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => std::process::exit(SIGPIPE),
        Err(error) => {
            print_error(&format!(
                "error: writing to the standard output: {error}\nnext:  check where the output goes"
            ));
            std::process::exit(1);
        }
    }
}

/// Prints text on the standard error, escaped. A failed write is ignored.
pub fn print_error(text: &str) {
    let _ = io::stderr().write_all(format!("{}\n", escape::lines(text)).as_bytes());
}
