//! Parameters of a call, as they stand behind the `?`.

use std::collections::BTreeMap;

use dalsegno_protocol::Limits;

use crate::response::Refusal;

/// The parameters of a call, by name.
pub(crate) struct Query(BTreeMap<String, String>);

impl Query {
    /// The parameters, none of which is unknown, not UTF-8, or there twice.
    pub(crate) fn parse(query: Option<&str>, known: &[&str]) -> Result<Self, Refusal> {
        let mut parameters = BTreeMap::new();
        for pair in query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            if !known.contains(&name) {
                return Err(Refusal::invalid(format!("this call takes the parameters {}", known.join(", "))));
            }
            let value = decoded(value)
                .ok_or_else(|| Refusal::invalid(format!("`{name}` is not percent-encoded UTF-8")))?;
            if parameters.insert(name.to_owned(), value).is_some() {
                return Err(Refusal::invalid(format!("`{name}` is there twice")));
            }
        }
        Ok(Self(parameters))
    }

    /// A parameter, if it is there.
    pub(crate) fn take(&mut self, name: &str) -> Option<String> {
        self.0.remove(name)
    }

    /// A whole number that is not less than `least`, if it is there.
    pub(crate) fn number(&mut self, name: &str, least: i64) -> Result<Option<i64>, Refusal> {
        let Some(text) = self.take(name) else { return Ok(None) };
        match text.parse().ok().filter(|number| *number >= least) {
            Some(number) => Ok(Some(number)),
            None => Err(Refusal::invalid(format!("`{name}` must be a whole number, at least {least}"))),
        }
    }

    /// How many a page may have at most.
    pub(crate) fn limit(&mut self) -> Result<u32, Refusal> {
        let limit = self.number("limit", 1)?.unwrap_or(i64::from(Limits::PAGE));
        Ok(u32::try_from(limit).unwrap_or(u32::MAX).min(Limits::PAGE))
    }
}

/// Undoes percent-encoding; a plus is a plus.
fn decoded(text: &str) -> Option<String> {
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
    fn percent_encoding_is_undone() {
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
            assert_eq!(decoded(text).as_deref(), expected, "{text}");
        }
    }
}
