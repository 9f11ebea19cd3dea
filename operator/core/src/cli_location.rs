//! The commands of this program, as messages show them: a person can paste them.

use crate::text::shell_quoted;

/// Name of the operator's Deployment in the chart.
const DEPLOYMENT: &str = "dalsegno";

/// Where a person runs this program, so that it reaches the store of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CliLocation {
    /// In the operator's pod, which has the database's URL and the keys.
    Pod {
        /// Namespace of the operator.
        namespace: String,
    },
    /// On the machine of `dalsegno dev`.
    Local {
        /// URL of its store.
        store_url: String,
    },
}

impl CliLocation {
    /// A command line: a verb, then words that are quoted where a shell needs it.
    pub fn command(&self, verb: &str, words: &[&str]) -> String {
        let start = match self {
            Self::Pod { namespace } => {
                format!(
                    "kubectl exec --namespace {} deployment/{DEPLOYMENT} -- /dalsegno {verb}",
                    shell_quoted(namespace)
                )
            }
            Self::Local { store_url } => {
                format!("dalsegno {verb} --database-url {}", shell_quoted(store_url))
            }
        };
        words.iter().fold(start, |line, word| format!("{line} {}", shell_quoted(word)))
    }

    /// The options that say who runs a command, and why: the person replaces the text. A pod does not know the user.
    pub fn justification(&self, why: &str) -> String {
        match self {
            Self::Pod { .. } => format!("--reason \"{why}\" --by \"$USER\""),
            Self::Local { .. } => format!("--reason \"{why}\""),
        }
    }
}
