//! The inbox: messages that people and programs have sent to the run.

use std::fmt::Write as _;
use std::sync::atomic::Ordering;

use dalsegno_protocol::{Message, MessagesResponse, RawValue, WaitAnswer};
use serde::Serialize;

use crate::{Result, Run};

impl Run {
    /// Position of the newest message, as of the latest answer; 0 if none came.
    pub fn inbox(&self) -> i64 {
        self.signals.inbox.load(Ordering::SeqCst)
    }

    /// Whether a message has come that [`Self::read_inbox`] has not returned in this process, as of the latest answer.
    pub fn new_messages(&self) -> bool {
        self.inbox() > self.read_to.load(Ordering::SeqCst)
    }

    /// The messages that no boundary has taken, in order. Take them with [`crate::Commit::take`].
    ///
    /// A message that is not taken comes again, in later attempts too. It is its author's word: see [`UserTurn`].
    pub fn read_inbox(&self) -> Result<Vec<Message>> {
        let known = self.inbox();
        let (mut messages, mut next) = (Vec::new(), Some(0));
        while let Some(after) = next {
            let mut page = self.inbox_page(&format!("after={after}"))?;
            messages.append(&mut page.messages);
            next = page.next;
        }
        let last = messages.last().map_or(known, |message| message.position.max(known));
        self.read_to.fetch_max(last, Ordering::SeqCst);
        Ok(messages)
    }

    /// A page of the messages that no boundary has taken.
    pub(crate) fn inbox_page(&self, query: &str) -> Result<MessagesResponse> {
        self.client.call(&format!("inbox?{query}"), None)
    }
}

/// What a person said, as a turn of the user in a model's conversation: `{"role": "user", "content": …}`.
///
/// It names the author, and quotes each line of the text with `> `. So a text can neither pass for the system's word, nor
/// for another author's. Never put a message, or the reason or the changes of an answer, into a system prompt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct UserTurn {
    /// Always `user`.
    pub role: &'static str,
    /// Who said it, and the quoted text.
    pub content: String,
}

impl UserTurn {
    fn new(content: String) -> Self {
        Self { role: "user", content }
    }
}

impl From<&Message> for UserTurn {
    fn from(message: &Message) -> Self {
        let mut content = format!("Message from {}", one_line(&message.author));
        if let Some(topic) = &message.topic {
            // Writing to a String cannot fail.
            let _ = write!(content, " (topic {})", one_line(topic));
        }
        content.push(':');
        quote(&mut content, &text(message.value.as_deref().unwrap_or(RawValue::NULL)));
        Self::new(content)
    }
}

impl From<&WaitAnswer> for UserTurn {
    fn from(answer: &WaitAnswer) -> Self {
        let outcome = serde_json::to_value(answer.outcome).unwrap_or_default();
        let by = one_line(answer.by.as_deref().unwrap_or("Nobody"));
        let mut content = format!("{by} answered: {}.", outcome.as_str().unwrap_or_default());
        if let Some(reason) = &answer.reason {
            content.push_str("\nReason:");
            quote(&mut content, reason);
        }
        if let Some(changes) = &answer.changes {
            content.push_str("\nChanges:");
            quote(&mut content, &text(changes));
        }
        Self::new(content)
    }
}

/// A JSON string as its text, and any other value as JSON.
fn text(value: &RawValue) -> String {
    serde_json::from_str(value.get()).unwrap_or_else(|_| value.get().to_owned())
}

fn quote(content: &mut String, text: &str) {
    for line in text.split(is_line_end) {
        let _ = write!(content, "\n> {line}");
    }
}

/// Every character at which some program may begin a new line.
fn is_line_end(character: char) -> bool {
    matches!(character, '\n' | '\r' | '\x0b' | '\x0c' | '\x1c'..='\x1e' | '\u{85}' | '\u{2028}' | '\u{2029}')
}

/// Only what a reader sees: no line ends, no control characters, and nothing that hides text or turns it around.
fn one_line(text: &str) -> String {
    text.chars().map(|it| if is_printable(it) { it } else { ' ' }).collect()
}

/// Whether Rust's debug output shows the character as it is. These are the characters that Python calls printable.
fn is_printable(character: char) -> bool {
    // After another character: a combining mark is escaped only where there is nothing that it could combine with.
    let is_shown = || !format!("a{character}").escape_debug().skip(1).any(|it| it == '\\');
    matches!(character, '\\' | '"' | '\'') || is_shown()
}
