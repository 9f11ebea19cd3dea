//! Removes comments, strings and tests from a source. The remaining text contains the imports and definitions.

/// Replaces comments and the contents of strings by blanks. Line numbers do not change.
pub fn without_texts(source: &str) -> String {
    let letters: Vec<char> = source.chars().collect();
    let mut left = String::with_capacity(source.len());
    let mut at = 0;
    while at < letters.len() {
        let end = text_end(&letters, at);
        match end {
            Some(end) => {
                left.extend(letters[at..end].iter().map(|letter| if *letter == '\n' { '\n' } else { ' ' }));
                at = end;
            }
            None => {
                left.push(letters[at]);
                at += 1;
            }
        }
    }
    left
}

/// Where the comment, the string or the character that begins here ends; `None`: none does.
fn text_end(letters: &[char], at: usize) -> Option<usize> {
    let begins =
        |text: &str| text.chars().enumerate().all(|(i, letter)| letters.get(at + i) == Some(&letter));
    let after_name = at > 0 && is_name(letters[at - 1]);
    if begins("//") {
        return Some(
            letters[at..].iter().position(|letter| *letter == '\n').map_or(letters.len(), |n| at + n),
        );
    }
    if begins("/*") {
        let end = (at + 2..letters.len()).find(|i| letters[*i] == '*' && letters.get(i + 1) == Some(&'/'));
        return Some(end.map_or(letters.len(), |end| end + 2));
    }
    if !after_name && (letters[at] == 'r' || begins("br")) {
        let mut i = at + if letters[at] == 'b' { 2 } else { 1 };
        let hashes = letters[i..].iter().take_while(|letter| **letter == '#').count();
        i += hashes;
        if letters.get(i) == Some(&'"') {
            let is_end = |i: &usize| {
                letters[*i] == '"' && letters[i + 1..].iter().take_while(|l| **l == '#').count() >= hashes
            };
            return Some((i + 1..letters.len()).find(is_end).map_or(letters.len(), |end| end + 1 + hashes));
        }
    }
    if letters[at] == '"' {
        return Some(quoted_end(letters, at, '"'));
    }
    // A lifetime has no second quote.
    let is_character =
        letters[at] == '\'' && (letters.get(at + 1) == Some(&'\\') || letters.get(at + 2) == Some(&'\''));
    is_character.then(|| quoted_end(letters, at, '\''))
}

fn quoted_end(letters: &[char], at: usize, quote: char) -> usize {
    let mut i = at + 1;
    while i < letters.len() && letters[i] != quote {
        i += if letters[i] == '\\' { 2 } else { 1 };
    }
    (i + 1).min(letters.len())
}

/// The same without items that are for tests alone.
pub fn without_tests(source: &str) -> String {
    const MARK: &str = "#[cfg(test)]";
    let mut left = source.to_owned();
    while let Some(at) = left.find(MARK) {
        let end = item_end(&left, at + MARK.len());
        left.replace_range(at..end, "");
    }
    left
}

/// Where the item that begins there ends: after its semicolon, or after its braces.
pub fn item_end(source: &str, from: usize) -> usize {
    let mut depth = 0_i32;
    for (at, letter) in source[from..].char_indices() {
        match letter {
            '{' | '(' | '[' => depth += 1,
            '}' | ')' | ']' => {
                depth -= 1;
                if depth == 0 && letter == '}' {
                    return from + at + 1;
                }
            }
            ';' if depth == 0 => return from + at + 1,
            _ => {}
        }
    }
    source.len()
}

/// Whether a letter may be in a name.
pub fn is_name(letter: char) -> bool {
    letter.is_alphanumeric() || letter == '_'
}

#[test]
fn texts_and_tests_are_left_out() {
    let source = r##"use a::b; // use c
        /* use d */ const S: &str = "use e; \" { ";
        const R: &str = r#"use f " {"#; const Q: char = '"'; fn g<'a>(it: &'a str) {}
        #[cfg(test)]
        mod tests { use h::i; fn j() {} }
        use k;"##;
    let left = without_tests(&without_texts(source));
    for there in ["use a::b;", "fn g<'a>(it: &'a str) {}", "use k;"] {
        assert!(left.contains(there), "{there}: {left}");
    }
    for gone in ["use c", "use d", "use e", "use f", "use h"] {
        assert!(!left.contains(gone), "{gone}: {left}");
    }
}
