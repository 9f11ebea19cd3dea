//! Triggers: the words of the contract, and what a word of the agent's own looks like.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

use dalsegno_protocol::{InvalidTrigger, Limits, Trigger};

#[test]
fn every_word_of_the_contract_is_the_same_after_a_round_trip() {
    let words: Vec<_> = Trigger::known().collect();
    assert_eq!(
        words,
        ["TURN_END", "TASK_END", "GUARD_EVAL", "POLICY_PRE", "POLICY_POST", "COMPENSATION", "SUSPENSION"]
    );
    for word in words {
        let trigger: Trigger = word.parse().unwrap();
        assert_eq!((trigger.as_str(), trigger.to_string().as_str()), (word, word));
        assert!(!matches!(trigger, Trigger::Own(_)), "{word}");
    }
}

#[test]
fn a_word_of_the_agents_own_begins_with_a_small_letter_and_no_other_word_is_a_trigger() {
    let longest = "a".repeat(Limits::NAME_CHARS);
    for word in ["t", "invoice.checked", "step-2_b", &longest] {
        assert_eq!(word.parse::<Trigger>().unwrap(), Trigger::own(word).unwrap());
        assert_eq!(Trigger::own(word).unwrap().as_str(), word);
    }
    let too_long = "a".repeat(Limits::NAME_CHARS + 1);
    for word in ["", "TASK_ENDED", "Task", "turn done", "9th", ".a", "é", "a\0", "aB", &too_long] {
        assert_eq!(word.parse::<Trigger>(), Err(InvalidTrigger), "{word:?}");
    }
    assert_eq!(
        Trigger::own("TASK_END"),
        Err(InvalidTrigger),
        "a word of the contract is not the agent's own"
    );
    let advice = InvalidTrigger.to_string();
    assert!(advice.contains("TASK_END") && advice.contains("such as invoice.checked"), "{advice}");
}
