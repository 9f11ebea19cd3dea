//! The path of a document of a run, which is the same behind both doors.

/// A document of a run: the subresource, and what is asked of it.
pub struct Document<'a> {
    /// Name of the AgentRun.
    pub run: &'a str,
    /// The subresource, such as `state`.
    pub name: &'a str,
    /// Query parameters.
    pub query: Vec<(&'static str, String)>,
}

impl<'a> Document<'a> {
    /// A document without parameters.
    pub fn new(run: &'a str, name: &'a str) -> Self {
        Self { run, name, query: Vec::new() }
    }

    /// Adds a parameter.
    pub fn with(mut self, name: &'static str, value: impl ToString) -> Self {
        self.query.push((name, value.to_string()));
        self
    }

    /// Adds a parameter if there is a value.
    pub fn with_some(self, name: &'static str, value: Option<impl ToString>) -> Self {
        match value {
            Some(value) => self.with(name, value),
            None => self,
        }
    }

    /// The path below a prefix, and the query.
    pub fn path_and_query(&self, prefix: &str, namespace: &str) -> String {
        let Self { run, name, query } = self;
        let pairs: Vec<_> =
            query.iter().map(|(key, value)| format!("{key}={}", percent_encoded(value))).collect();
        let query = if pairs.is_empty() { String::new() } else { format!("?{}", pairs.join("&")) };
        format!(
            "{prefix}/namespaces/{}/agentruns/{}/{name}{query}",
            percent_encoded(namespace),
            percent_encoded(run)
        )
    }
}

/// Encodes everything but letters, digits and `-._~`.
fn percent_encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => encoded.push(byte.into()),
            byte => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_can_leave_neither_its_run_nor_its_namespace() {
        let document = Document::new("../../secrets", "state").with("turn", 7).with("wait", "a b&c=é");
        assert_eq!(
            document.path_and_query("/v1", "shop"),
            "/v1/namespaces/shop/agentruns/..%2F..%2Fsecrets/state?turn=7&wait=a%20b%26c%3D%C3%A9"
        );
        let plain = Document::new("nightly", "facts").with_some("turn", None::<i32>);
        assert_eq!(plain.path_and_query("/v1", "shop"), "/v1/namespaces/shop/agentruns/nightly/facts");
    }
}
