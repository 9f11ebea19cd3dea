//! Query parameters of a call.

use std::collections::BTreeMap;

use dalsegno_protocol::Limits;

use crate::response::ApiProblem;

/// The query parameters of a call, by name.
pub(crate) struct Query(BTreeMap<String, String>);

impl Query {
    /// Refuses a parameter that is not in `known`, is not UTF-8, or occurs twice.
    pub(crate) fn parse(query: Option<&str>, known: &[&str]) -> Result<Self, ApiProblem> {
        let mut parameters = BTreeMap::new();
        for pair in query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            if !known.contains(&name) {
                return Err(ApiProblem::invalid(match known {
                    [] => "this call takes no parameters".to_owned(),
                    known => format!("this call takes the parameters {}", known.join(", ")),
                }));
            }
            let value = percent_decoded(value)
                .ok_or_else(|| ApiProblem::invalid(format!("`{name}` is not percent-encoded UTF-8")))?;
            if parameters.insert(name.to_owned(), value).is_some() {
                return Err(ApiProblem::invalid(format!("`{name}` occurs twice in the query")));
            }
        }
        Ok(Self(parameters))
    }

    /// Removes and returns a parameter.
    pub(crate) fn take(&mut self, name: &str) -> Option<String> {
        self.0.remove(name)
    }

    /// Removes and returns a whole number that is at least `min`.
    pub(crate) fn take_number(&mut self, name: &str, min: i64) -> Result<Option<i64>, ApiProblem> {
        let Some(text) = self.take(name) else { return Ok(None) };
        match text.parse().ok().filter(|number| *number >= min) {
            Some(number) => Ok(Some(number)),
            None => Err(ApiProblem::invalid(format!("`{name}` must be a whole number, at least {min}"))),
        }
    }

    /// Removes a parameter that is one of these words, and returns what the word stands for.
    pub(crate) fn take_word<T: Copy>(
        &mut self,
        name: &str,
        words: &[(&str, T)],
    ) -> Result<Option<T>, ApiProblem> {
        let Some(text) = self.take(name) else { return Ok(None) };
        match words.iter().find(|(word, _)| *word == text) {
            Some((_, value)) => Ok(Some(*value)),
            None => {
                let words: Vec<_> = words.iter().map(|(word, _)| *word).collect();
                Err(ApiProblem::invalid(format!("`{name}` must be {}", words.join(" or "))))
            }
        }
    }

    /// Removes `limit`: the number of items in a page, at most [`Limits::PAGE`].
    pub(crate) fn take_limit(&mut self) -> Result<u32, ApiProblem> {
        let limit = self.take_number("limit", 1)?.unwrap_or(i64::from(Limits::PAGE));
        Ok(u32::try_from(limit).unwrap_or(u32::MAX).min(Limits::PAGE))
    }
}

/// Decodes percent-encoding. A plus sign stays a plus sign.
fn percent_decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        let byte = match byte {
            b'%' => {
                let mut digit = || char::from(rest.next()?).to_digit(16);
                u8::try_from(digit()? << 4 | digit()?).ok()?
            }
            other => other,
        };
        bytes.push(byte);
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percent_encoding_is_decoded() {
        for (text, expected) in [
            ("", Some("")),
            ("a+b", Some("a+b")),
            ("a%20b%2Fc%26", Some("a b/c&")),
            ("%C3%a9", Some("é")),
            ("é", Some("é")),
            ("%", None),
            ("%2", None),
            ("%zz", None),
            ("%é", None),
            ("%C3", None),
        ] {
            assert_eq!(percent_decoded(text).as_deref(), expected, "{text}");
        }
    }
}
