//! Texts of a worker that people read.

/// Replaces every control character except line breaks and tabs by a space: such characters can control a terminal, and
/// databases reject some of them.
pub fn printable(text: &str) -> String {
    text.chars().map(|it| if it.is_control() && it != '\n' && it != '\t' { ' ' } else { it }).collect()
}

#[cfg(test)]
mod tests {
    use super::printable;

    #[test]
    fn control_characters_become_spaces_and_line_breaks_stay() {
        assert_eq!(printable("\u{1b}[2Jé\r\n\tb\u{0}c\u{7f}\u{9b}H"), " [2Jé \n\tb c  H");
    }
}
