//! Foreign text: what agents, workers and people have written. It may hold sequences that control a terminal, that hide
//! text, or that show text in another order than it is stored.

/// Whether a character is shown as its code: it controls a terminal, changes the direction of text, or cannot be seen.
pub fn is_unsafe(letter: char) -> bool {
    letter.is_control()
        || matches!(letter,
            // Soft hyphen, and marks and embeddings of a direction.
            '\u{ad}' | '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
            // No width: joiners, fillers, separators of lines that terminals treat as they like.
            | '\u{34f}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{180b}'..='\u{180f}'
            | '\u{200b}'..='\u{200d}' | '\u{2028}' | '\u{2029}' | '\u{2060}'..='\u{2065}' | '\u{206a}'..='\u{206f}'
            | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}'
            // Tags and variation selectors, in which a whole text can be hidden.
            | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}')
}

/// The text with every unsafe character as its code, such as `\u{1b}`. Line breaks stay.
pub fn lines(text: &str) -> String {
    escaped(text, |letter| letter == '\n')
}

/// The text on one line: line breaks are shown as codes too, so that foreign text cannot pretend to be the next line.
pub fn line(text: &str) -> String {
    escaped(text, |_| false)
}

fn escaped(text: &str, stays: impl Fn(char) -> bool) -> String {
    let mut shown = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            letter if stays(letter) || !is_unsafe(letter) => shown.push(letter),
            '\n' => shown.push_str("\\n"),
            '\r' => shown.push_str("\\r"),
            '\t' => shown.push_str("\\t"),
            letter => shown.extend(letter.escape_unicode()),
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_controls_a_terminal_or_turns_text_around_is_shown_as_its_code() {
        assert_eq!(line("a\u{1b}[2Jb\u{9b}H"), "a\\u{1b}[2Jb\\u{9b}H");
        assert_eq!(line("pay \u{202e}005\u{202c}\u{200b}"), "pay \\u{202e}005\\u{202c}\\u{200b}");
        assert_eq!(line("one\ntwo\r\n\tthree"), "one\\ntwo\\r\\n\\tthree");
        assert_eq!(lines("one\ntwo\u{7}"), "one\ntwo\\u{7}");
        assert_eq!(lines("Fähre 渡し船 e\u{301}"), "Fähre 渡し船 e\u{301}");
        assert_eq!(line("\u{e0041}\u{fe0f}"), "\\u{e0041}\\u{fe0f}");
    }

    proptest! {
        #[test]
        fn no_text_keeps_an_unsafe_character(text in any::<String>()) {
            prop_assert!(!line(&text).chars().any(is_unsafe));
            prop_assert!(!lines(&text).chars().any(|letter| letter != '\n' && is_unsafe(letter)));
        }

        #[test]
        fn safe_text_is_shown_as_it_is(text in "[ -~äöü渡]*") {
            prop_assert_eq!(line(&text), text.clone());
        }

        #[test]
        fn an_escape_is_not_escaped_again(text in any::<String>()) {
            prop_assert_eq!(line(&line(&text)), line(&text));
        }

        #[test]
        fn every_control_of_a_terminal_is_found(letter in prop::char::ranges(vec!['\u{0}'..='\u{1f}', '\u{7f}'..='\u{9f}'].into())) {
            prop_assert!(is_unsafe(letter));
        }
    }
}
