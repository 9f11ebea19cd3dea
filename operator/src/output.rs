//! What a verb tells a person, or the program behind a pipe. Where it cannot be written nothing panics.

use std::fmt;
use std::io::{self, Write};
use std::process::exit;

use dalsegno_protocol::printable;

/// How a shell tells of a program that SIGPIPE has ended; ours ignores it, as all of Rust.
const UNREAD: i32 = 128 + 13;

/// Standard output, byte for byte. Where nobody reads it any more, as behind `| head -1`, the program ends as others do:
/// without a word, and not as if all had been said.
pub struct Output;

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        unless_unread(io::stdout().write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        unless_unread(io::stdout().flush())
    }
}

fn unless_unread<T>(written: io::Result<T>) -> io::Result<T> {
    if written.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::BrokenPipe) {
        exit(UNREAD);
    }
    written
}

/// Prints a line, in the way of `println!`.
macro_rules! print_line {
    () => { $crate::output::print(format_args!("\n")) };
    ($($text:tt)+) => { $crate::output::print(format_args!("{}\n", format_args!($($text)+))) };
}
pub(crate) use print_line;

/// Prints this, and nothing of it steers a terminal: a worker may have written it. A program that cannot print has failed.
pub fn print(text: fmt::Arguments<'_>) {
    if let Err(error) = Output.write_all(printable(&text.to_string()).as_bytes()) {
        mention(&format!("dalsegno: writing to standard output: {error}"));
        exit(1);
    }
}

/// A line on standard error, in one write, as printable as the rest: nothing hangs on whether anybody reads it.
pub fn mention(line: &str) {
    let _ = io::stderr().write_all(printable(&format!("{line}\n")).as_bytes());
}
