//! How deeply a JSON text is nested. Scans the bytes without recursion or allocation.

/// The offset in bytes at which the text is nested deeper than `limit` levels; `None` if it never is.
///
/// The text need not be JSON: a parser checks that afterwards, and can then recurse safely.
pub fn deeper_than(limit: usize, text: &[u8]) -> Option<usize> {
    let mut depth = 0usize;
    let mut offset = 0;
    while let Some(byte) = text.get(offset) {
        match byte {
            b'"' => offset = end_of_string(text, offset)?,
            b'[' | b'{' => {
                depth += 1;
                if depth > limit {
                    return Some(offset);
                }
            }
            b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        offset += 1;
    }
    None
}

/// The offset of the quote that closes the string opened at `open`; `None` if the string never closes.
pub fn end_of_string(text: &[u8], open: usize) -> Option<usize> {
    let mut offset = open + 1;
    loop {
        offset += memchr::memchr2(b'"', b'\\', text.get(offset..)?)?;
        if text[offset] == b'"' {
            return Some(offset);
        }
        // Skip the backslash and the character that it escapes.
        offset += 2;
    }
}

#[cfg(test)]
mod tests {
    use super::deeper_than;

    #[test]
    fn the_limit_itself_is_allowed_and_one_level_more_is_not() {
        assert_eq!(deeper_than(3, b"[[[1]],[[2]]]"), None);
        assert_eq!(deeper_than(3, b"[[[1]],[[[2]]]]"), Some(9));
        assert_eq!(deeper_than(3, br#"{"a":{"b":[{}]}}"#), Some(11));
    }

    #[test]
    fn brackets_in_strings_do_not_count() {
        assert_eq!(deeper_than(1, br#"["[[[[","\"[[[","\\"]"#), None);
        assert_eq!(deeper_than(1, br#"["\\",[]]"#), Some(6));
    }

    #[test]
    fn a_hundred_thousand_levels_are_found_without_recursion() {
        assert_eq!(deeper_than(128, "[".repeat(100_000).as_bytes()), Some(128));
    }

    #[test]
    fn unmatched_closing_brackets_are_left_to_the_parser() {
        assert_eq!(deeper_than(1, b"]]]][]"), None);
    }
}
