//! `dalsegno audit` with a copy of the anchors: how it is read; what `prune` drops, who may, and what a person is told.

use std::fs::File;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use dalsegno_store::proof::{Anchor, Signer};
use dalsegno_store::{AskedBy, AuditRow, RunId, Store};
use jiff::Timestamp;
use sqlx::{Connection as _, Executor as _, PgConnection};

use crate::pg;
use crate::place::{Place, RUN, run};

/// The day of the first anchor, and the one after.
const DAY: &str = "2026-05-01T12:00:00Z";
const NEXT_DAY: &str = "2026-05-02";

/// What the operator tells while it works: the anchor of what has moved, among other lines. The copy is the place's file
/// `operator.log`.
async fn anchor(place: &Place, store: &dyn Store, at: &str) {
    anchor_by(&Signer::load(store, None).await.unwrap(), place, store, at).await;
}

async fn anchor_by(signer: &Signer, place: &Place, store: &dyn Store, at: &str) {
    let (moved, id) = (store.unanchored().await.unwrap(), store.id().await.unwrap());
    let anchor = Anchor::next(&moved, id, at.parse::<Timestamp>().unwrap(), signer);
    assert!(store.put_anchor(&anchor.row().unwrap()).await.unwrap());
    let before = std::fs::read_to_string(place.path("operator.log")).unwrap_or("it begins\n".into());
    std::fs::write(place.path("operator.log"), before + &anchor.line().unwrap() + "\n").unwrap();
}

/// The run, and its audit.
async fn audit(store: &dyn Store) -> (RunId, Vec<AuditRow>) {
    let found = store.find("default", "agent").await.unwrap();
    (found[0].id, store.audit(found[0].id).await.unwrap())
}

fn prune(place: &Place, copy: &str, before: &str, more: &[&str]) -> (bool, String) {
    let verb = ["audit", "prune", "--anchors", copy, "--before", before, "--reason", "it is archived"];
    place.dalsegno(&[&verb, more].concat(), true)
}

#[tokio::test]
async fn a_copy_is_read_as_collectors_leave_it_and_from_standard_input() {
    let place = Place::new();
    let store = place.store().await;
    run(&*store, false).await;
    anchor(&place, &*store, DAY).await;
    let told = std::fs::read_to_string(place.path("operator.log")).unwrap();
    let (first, line) = told.split_once('\n').unwrap();
    let collected =
        [b"\xff not text\n", first.as_bytes(), b"\n2027-01-31T12:00:00Z stdout F ", line.as_bytes()];
    let copy = place.path("collected.log");
    std::fs::write(&copy, collected.concat()).unwrap();

    let (done, told) = place.dalsegno(&["audit", "verify", "--anchors", &copy], true);
    assert!(done && told.contains("1 in the copy: 0 problems"), "{told}");
    let (verify, input) = (["audit", "verify", "--anchors", "-"], || File::open(&copy).unwrap());
    let (done, told) = place.dalsegno_with(input(), &verify, true);
    assert!(done && told.contains("1 in the copy: 0 problems"), "{told}");
    let (done, told) = place.dalsegno(&verify, true);
    assert!(!done && told.contains("holds no anchor") && told.contains(r#"{"anchor":{"#), "{told}");
    let verb = ["audit", "prune", "--anchors", "-", "--before", NEXT_DAY, "--reason", "it is archived"];
    let (done, told) = place.dalsegno_with(input(), &verb, true);
    assert!(done && told.contains("rows of 1 runs were pruned"), "{told}");
}

#[tokio::test]
async fn a_public_key_without_a_copy_that_it_must_have_signed_is_refused() {
    let place = Place::new();
    let key = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";
    let (done, told) = place.dalsegno(&["audit", "verify", "--public-key", key], true);
    assert!(!done && told.contains("--anchors <FILE>"), "{told}");
}

#[tokio::test]
async fn what_an_anchor_of_the_copy_named_before_that_day_is_pruned_and_the_rest_still_verifies() {
    let place = Place::new();
    let (store, copy) = (place.store().await, place.path("operator.log"));
    run(&*store, false).await;
    let (id, before) = audit(&*store).await;
    anchor(&place, &*store, DAY).await;
    store.request_cancel(id, &AskedBy::default()).await.unwrap();
    anchor(&place, &*store, "2026-05-03T12:00:00Z").await;

    let (done, told) = prune(&place, &copy, "2026-05-01", &[]);
    assert!(done && told.contains("0 rows of 0 runs were pruned"), "{told}");
    let (done, told) = prune(&place, &copy, NEXT_DAY, &["--by", "grace"]);
    assert!(done && told.contains(&format!("{} rows of 1 runs were pruned", before.len())), "{told}");

    let (_, after) = audit(&*store).await;
    assert_eq!(after[0].seq, before.len() as i64 + 1);
    let last = after.last().unwrap();
    assert_eq!((last.kind.as_str(), last.actor.as_str()), ("pruned", "grace"));
    assert!(last.detail.contains(r#""reason":"it is archived""#), "{}", last.detail);
    for verb in [&["audit", "verify", "--anchors", &copy][..], &["audit", "verify"], &["verify", RUN]] {
        let (done, told) = place.dalsegno(verb, true);
        assert!(done && told.contains("0 problems"), "{verb:?}: {told}");
    }
    let (done, told) = prune(&place, &copy, NEXT_DAY, &[]);
    assert!(done && told.contains("0 rows of 0 runs were pruned"), "once: {told}");
}

#[tokio::test]
async fn a_copy_that_two_keys_have_signed_one_after_the_other_proves_the_store_to_who_knows_both() {
    let (place, other) = (Place::new(), Place::new());
    let (store, copy) = (place.store().await, place.path("operator.log"));
    let (id, mut keys) = (run(&*store, false).await, Vec::new());
    for (at, keeper) in [(DAY, &place), ("2026-05-03T12:00:00Z", &other)] {
        let signer = Signer::load(&*keeper.store().await, None).await.unwrap();
        anchor_by(&signer, &place, &*store, at).await;
        store.request_cancel(id, &AskedBy::default()).await.unwrap();
        keys.extend(["--public-key".to_owned(), STANDARD.encode(signer.public_key())]);
    }
    let keys: Vec<_> = keys.iter().map(String::as_str).collect();
    let (done, told) = prune(&place, &copy, NEXT_DAY, &keys[2..]);
    assert!(!done && told.contains("another public key"), "{told}");
    let (done, told) = prune(&place, &copy, NEXT_DAY, &keys);
    assert!(done && told.contains("rows of 1 runs were pruned"), "{told}");
}

#[tokio::test]
async fn a_copy_that_does_not_prove_the_store_prunes_nothing() {
    let (place, other) = (Place::new(), Place::new());
    let (store, copy) = (place.store().await, place.path("operator.log"));
    for place in [&place, &other] {
        let store = place.store().await;
        run(&*store, false).await;
        anchor(place, &*store, DAY).await;
    }
    let before = audit(&*store).await;
    std::fs::write(place.path("empty.log"), "it begins\n").unwrap();
    let lines = std::fs::read_to_string(&copy).unwrap();
    std::fs::write(place.path("edited.log"), lines.replace("\"seq\":1", "\"seq\":2")).unwrap();
    let another = ["--public-key", "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="];
    for (copy, more, why) in [
        (other.path("operator.log"), &[][..], "the store is not as it was written"),
        (place.path("edited.log"), &[], "the store is not as it was written"),
        (copy, &another, "another public key"),
        (place.path("empty.log"), &[], "holds no anchor"),
        (place.path("missing.log"), &[], "missing.log"),
    ] {
        let (done, told) = prune(&place, &copy, NEXT_DAY, more);
        assert!(!done && told.contains(why) && told.contains("nothing was pruned"), "{copy}: {told}");
        assert_eq!(audit(&*store).await, before, "{copy}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_postgresql_only_the_role_that_owns_the_tables_prunes() {
    let owner = Place::at(pg::database().await);
    let mut session = PgConnection::connect(&owner.url).await.unwrap();
    session.execute("CREATE ROLE app LOGIN").await.unwrap();
    let (done, told) = owner.dalsegno(&["migrate", "--grant-to", "app"], false);
    assert!(done, "{told}");
    let app = Place::at(owner.url.replacen("postgres@", "app@", 1));
    let store = app.store_as_it_is().await;
    run(&*store, false).await;
    anchor(&app, &*store, DAY).await;
    let before = audit(&*store).await;

    let copy = app.path("operator.log");
    let (done, told) = prune(&app, &copy, NEXT_DAY, &[]);
    assert!(!done && told.contains("the role that owns its tables"), "{told}");
    assert_eq!(audit(&*store).await, before);
    let (done, told) = prune(&owner, &copy, NEXT_DAY, &[]);
    assert!(done && told.contains(&format!("{} rows of 1 runs were pruned", before.1.len())), "{told}");
    let (done, told) = app.dalsegno(&["audit", "verify", "--anchors", &copy], true);
    assert!(done && told.contains("0 problems"), "{told}");
}
