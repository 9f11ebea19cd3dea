//! Output of commands, for a user or for the program behind a pipe. A failed write never panics.

use std::fmt;
use std::io::{self, Write};
use std::process::exit;

use dalsegno_protocol::printable;

/// Exit code of a program that was killed by SIGPIPE. Rust programs ignore that signal.
const SIGPIPE_EXIT_CODE: i32 = 128 + 13;

/// Standard output, byte for byte. If the reader has closed the pipe, as in `| head -1`, the program exits silently with
/// the code of SIGPIPE, as other programs do.
pub struct Output;

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        exit_on_broken_pipe(io::stdout().write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        exit_on_broken_pipe(io::stdout().flush())
    }
}

fn exit_on_broken_pipe<T>(written: io::Result<T>) -> io::Result<T> {
    if written.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::BrokenPipe) {
        exit(SIGPIPE_EXIT_CODE);
    }
    written
}

/// Prints a line, like `println!`.
macro_rules! print_line {
    () => { $crate::output::print(format_args!("\n")) };
    ($($text:tt)+) => { $crate::output::print(format_args!("{}\n", format_args!($($text)+))) };
}
pub(crate) use print_line;

/// Prints text without terminal control characters, since a worker may have written it. Exits with 1 if it cannot print.
pub fn print(text: fmt::Arguments<'_>) {
    if let Err(error) = Output.write_all(printable(&text.to_string()).as_bytes()) {
        print_message(&format!("writing to standard output: {error}"));
        exit(1);
    }
}

/// Prints a message of this program on standard error, in one write: output of an agent cannot split it.
pub fn print_message(line: &str) {
    print_error(&format!("dalsegno: {line}"));
}

/// Prints a line on standard error in one write, without terminal control characters. A failed write is ignored.
pub fn print_error(line: &str) {
    let _ = io::stderr().write_all(printable(&format!("{line}\n")).as_bytes());
}
