//! A database URL that leads to no store: the message has the path, and what to do.

use crate::test_context::{RUN, TestContext};

#[test]
fn a_file_that_does_not_exist_is_named_with_the_form_of_the_url() {
    let context = TestContext::new();
    for command in [&["show", RUN][..], &["audit", "show", RUN], &["export", RUN]] {
        let (success, text) = context.run(command, false);
        assert!(
            !success && text.contains(&format!("there is no file {}", context.path("runs.db"))),
            "{text}"
        );
        assert!(text.contains("sqlite:// and the absolute path of the store's file"), "{text}");
    }
}

#[test]
fn a_folder_and_a_file_that_is_no_database_are_named() {
    let context = TestContext::new();
    std::fs::create_dir(context.path("runs.db")).unwrap();
    let (success, text) = context.run(&["show", RUN], false);
    assert!(!success && text.contains(&format!("{} is a folder", context.path("runs.db"))), "{text}");
    std::fs::remove_dir(context.path("runs.db")).unwrap();
    std::fs::write(context.path("runs.db"), "a page of text, and no database at all").unwrap();
    let (success, text) = context.run(&["show", RUN], false);
    assert!(
        !success && text.contains(&context.path("runs.db")) && text.contains("is not a database"),
        "{text}"
    );
}
