//! What a worker says to people.

/// The text with a blank for every control character but line breaks and tabs: what steers a terminal, or is no text to a
/// database.
pub fn printable(text: &str) -> String {
    text.chars().map(|it| if it.is_control() && it != '\n' && it != '\t' { ' ' } else { it }).collect()
}

#[cfg(test)]
mod tests {
    use super::printable;

    #[test]
    fn what_steers_a_terminal_is_a_blank_and_lines_stay() {
        assert_eq!(printable("\u{1b}[2Jé\r\n\tb\u{0}c\u{7f}\u{9b}H"), " [2Jé \n\tb c  H");
    }
}
