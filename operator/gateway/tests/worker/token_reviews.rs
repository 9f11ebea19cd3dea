//! Reviews of tokens: how often, how many at once, and what a cached verdict is good for.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use dalsegno_gateway::{Access, AuthError, Authenticator, Config, Gateway, PodIdentity, RunName, User};
use futures::future::join_all;
use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::sync::Semaphore;

use crate::connections::{connect_from, read_answer};
use crate::context::*;
use crate::server::{TestServer, start, until};

/// An API server that counts its reviews. The review of a token that begins with `slow-` waits until it is released.
struct CountingAuthenticator {
    reviews: AtomicUsize,
    under_way: AtomicUsize,
    most_under_way: AtomicUsize,
    released: Semaphore,
}

impl CountingAuthenticator {
    fn new() -> Arc<Self> {
        let [reviews, under_way, most_under_way] = Default::default();
        Arc::new(Self { reviews, under_way, most_under_way, released: Semaphore::new(0) })
    }

    /// Reviews so far.
    fn reviews(&self) -> usize {
        self.reviews.load(Ordering::SeqCst)
    }

    async fn count(&self, token: &str) {
        self.reviews.fetch_add(1, Ordering::SeqCst);
        let under_way = self.under_way.fetch_add(1, Ordering::SeqCst) + 1;
        self.most_under_way.fetch_max(under_way, Ordering::SeqCst);
        if token.starts_with("slow-") {
            self.released.acquire().await.unwrap().forget();
        }
        self.under_way.fetch_sub(1, Ordering::SeqCst);
    }
}

#[async_trait]
impl Authenticator for CountingAuthenticator {
    async fn review(&self, token: &str) -> Result<PodIdentity, AuthError> {
        self.count(token).await;
        TestAuthenticator.review(token.trim_start_matches("slow-")).await
    }

    async fn authorize(&self, token: &str, run: &RunName, access: Access) -> Result<User, AuthError> {
        self.count(token).await;
        TestAuthenticator.authorize(token, run, access).await
    }
}

/// A run whose first pod is recorded, behind a gateway with this configuration, and its authenticator.
async fn counted(config: Config) -> (TestContext, Arc<CountingAuthenticator>) {
    let ctx = TestContext::new().await;
    let authenticator = CountingAuthenticator::new();
    let gateway = Gateway::new(ctx.store.clone(), authenticator.clone(), config);
    (TestContext { gateway, ..ctx }, authenticator)
}

/// Four reviews of one address at once. A refused one pauses longer than any test takes.
fn long_pause() -> Config {
    let refused_review_pause = Duration::from_secs(600);
    Config { max_token_reviews_per_peer: 4, refused_review_pause, ..test_config() }
}

/// `GET state` by a user with this token.
async fn read_as(ctx: &TestContext, token: &str, run: &str) -> Answer {
    let request = axum::http::Request::builder().uri(format!("/v1/namespaces/{run}/state"));
    ctx.send(request.header("authorization", format!("Bearer {token}")), "").await
}

/// Sends an attach with this token from this loopback address and returns the answer.
async fn attach_from(last_byte: u8, token: &str, (ctx, server): (&TestContext, &TestServer)) -> String {
    let mut connection = connect_from(last_byte, server).await;
    let body = json!({ "instance": INSTANCE }).to_string();
    let request = format!(
        "POST /v1/runs/{}/attach HTTP/1.1\r\nHost: gateway\r\nAuthorization: Bearer {token}\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n{body}",
        ctx.run,
        body.len()
    );
    connection.write_all(request.as_bytes()).await.unwrap();
    read_answer(&mut connection).await
}

#[tokio::test]
async fn an_accepted_token_is_not_reviewed_again_at_once() {
    let (ctx, authenticator) = counted(test_config()).await;
    for _ in 0..3 {
        ctx.attach("pod-1", INSTANCE).await.ok();
    }
    assert_eq!(authenticator.reviews(), 1);
    ctx.post("turns/1", commit(1, "1")).await.ok();
    for _ in 0..3 {
        read_as(&ctx, "ada", "shop/agentruns/nightly").await.ok();
    }
    assert_eq!(authenticator.reviews(), 2);
}

#[tokio::test]
async fn a_refused_token_is_refused_again_without_a_review() {
    let (ctx, authenticator) = counted(test_config()).await;
    for _ in 0..3 {
        assert_eq!(ctx.post_as("forged", "attach", "{}").await.code(), "UNAUTHENTICATED");
    }
    assert_eq!(authenticator.reviews(), 1);
    for _ in 0..3 {
        assert_eq!(read_as(&ctx, "ada", "bank/agentruns/nightly").await.code(), "FORBIDDEN");
    }
    assert_eq!(authenticator.reviews(), 2);
}

#[tokio::test]
async fn a_verdict_counts_for_its_token_and_its_run_only() {
    let (ctx, authenticator) = counted(test_config()).await;
    ctx.attach("pod-1", INSTANCE).await.ok();
    assert_eq!(ctx.post_as("token-of-pod-", "attach", "{}").await.code(), "INVALID");
    assert_eq!(ctx.post_as("oken-of-pod-1", "attach", "{}").await.code(), "UNAUTHENTICATED");
    assert_eq!(read_as(&ctx, "ada", "shop/agentruns/nightly").await.code(), "NOT_FOUND");
    assert_eq!(read_as(&ctx, "ada", "bank/agentruns/nightly").await.code(), "FORBIDDEN");
    assert_eq!(read_as(&ctx, "token-of-pod-1", "shop/agentruns/nightly").await.code(), "UNAUTHENTICATED");
    // The same letters as those of ada, who may read runs of shop, divided otherwise.
    assert_eq!(read_as(&ctx, "adas", "hop/agentruns/nightly").await.code(), "UNAUTHENTICATED");
    assert_eq!(authenticator.reviews(), 7);
}

#[tokio::test]
async fn a_token_is_reviewed_again_once_its_verdict_is_too_old() {
    let ttl = Duration::ZERO;
    let (ctx, authenticator) =
        counted(Config { accepted_token_ttl: ttl, refused_token_ttl: ttl, ..test_config() }).await;
    for _ in 0..2 {
        ctx.attach("pod-1", INSTANCE).await.ok();
        assert_eq!(ctx.post_as("forged", "attach", "{}").await.code(), "UNAUTHENTICATED");
    }
    assert_eq!(authenticator.reviews(), 4);
}

#[tokio::test]
async fn a_failed_review_is_not_cached() {
    let (ctx, authenticator) = counted(test_config()).await;
    for _ in 0..2 {
        assert_eq!(ctx.post_as("review-fails", "attach", "{}").await.code(), "UNAVAILABLE");
    }
    assert_eq!(authenticator.reviews(), 2);
}

#[tokio::test]
async fn calls_with_one_token_at_once_are_one_review() {
    let (ctx, authenticator) = counted(test_config()).await;
    let attach = || ctx.post_as("slow-token-of-pod-1", "attach", json!({ "instance": INSTANCE }).to_string());
    let (answers, ()) = tokio::join!(join_all((0..12).map(|_| attach())), async {
        until("the review is under way", || authenticator.reviews() == 1).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        authenticator.released.add_permits(12);
    });
    answers.iter().for_each(|answer| drop(answer.ok()));
    assert_eq!(authenticator.reviews(), 1);
}

#[tokio::test]
async fn the_next_caller_reviews_if_the_first_one_gives_up() {
    let (ctx, authenticator) = counted(test_config()).await;
    let attach = || ctx.post_as("slow-token-of-pod-1", "attach", json!({ "instance": INSTANCE }).to_string());
    let mut first = Box::pin(attach());
    tokio::select! {
        answer = &mut first => panic!("{answer:?}"),
        () = until("the review is under way", || authenticator.reviews() == 1) => {}
    }
    let (second, ()) = tokio::join!(attach(), async {
        drop(first);
        until("the second caller reviews", || authenticator.reviews() == 2).await;
        authenticator.released.add_permits(2);
    });
    second.ok();
}

#[tokio::test]
async fn forged_tokens_of_one_address_take_its_share_of_the_reviews_and_keep_no_worker_out() {
    let config = Config { max_token_reviews: 8, max_token_reviews_per_peer: 4, ..test_config() };
    let (ctx, authenticator) = counted(config).await;
    let server = start(&ctx).await;
    let tokens: Vec<_> = (0..64).map(|number| format!("slow-forged-{number}")).collect();
    let flood = join_all(tokens.iter().map(|token| attach_from(2, token, (&ctx, &server))));
    tokio::select! {
        answers = flood => panic!("the reviews have ended: {answers:?}"),
        () = async {
            until("the flood is reviewed", || authenticator.reviews() == 4).await;
            tokio::time::sleep(Duration::from_millis(200)).await;
            let answer = attach_from(1, "token-of-pod-1", (&ctx, &server)).await;
            assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        } => {}
    }
    assert_eq!(authenticator.reviews(), 5);
    assert_eq!(authenticator.most_under_way.load(Ordering::SeqCst), 5);
    server.end().await;
}

#[tokio::test]
async fn refused_tokens_of_an_address_keep_half_of_its_places_for_a_pause() {
    let (ctx, authenticator) = counted(long_pause()).await;
    let server = start(&ctx).await;
    let forged = |prefix: &str| (0..20).map(|number| format!("{prefix}-{number}")).collect::<Vec<_>>();
    let tokens = forged("forged");
    let answers = join_all(tokens.iter().map(|token| attach_from(2, token, (&ctx, &server)))).await;
    assert!(answers.iter().all(|answer| answer.starts_with("HTTP/1.1 401")), "{answers:?}");
    assert_eq!(authenticator.reviews(), 20);
    let slow = forged("slow-forged");
    let flood = join_all(slow.iter().map(|token| attach_from(2, token, (&ctx, &server))));
    tokio::select! {
        answers = flood => panic!("the reviews have ended: {answers:?}"),
        () = async {
            until("two more are reviewed", || authenticator.reviews() == 22).await;
            tokio::time::sleep(Duration::from_millis(200)).await;
            let again = attach_from(2, &tokens[0], (&ctx, &server)).await;
            assert!(again.starts_with("HTTP/1.1 401"), "a known verdict needs no place: {again}");
            let answer = attach_from(1, "token-of-pod-1", (&ctx, &server)).await;
            assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        } => {}
    }
    assert_eq!(authenticator.reviews(), 23, "two places of the flooding address are in a pause");
    server.end().await;
}

/// Workers of one node may share its address with a pod that has no credential.
#[tokio::test]
async fn a_worker_behind_the_address_of_a_flood_of_invented_tokens_attaches() {
    let (ctx, authenticator) = counted(long_pause()).await;
    let server = start(&ctx).await;
    let (ctx, at) = (&ctx, &server);
    let flood = join_all((0..32).map(|connection| async move {
        for number in 0..1_000_000 {
            attach_from(2, &format!("forged-{connection}-{number}"), (ctx, at)).await;
        }
    }));
    tokio::select! {
        _ = flood => panic!("the flood has ended"),
        () = async {
            until("the flood is reviewed", || authenticator.reviews() > 64).await;
            let answer = attach_from(2, "token-of-pod-1", (ctx, at)).await;
            assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        } => {}
    }
    server.end().await;
}

#[tokio::test]
async fn strangers_take_no_place_of_a_user() {
    let (ctx, authenticator) = counted(Config { max_user_calls: 4, ..test_config() }).await;
    ctx.attach("pod-1", INSTANCE).await.ok();
    ctx.post("turns/1", commit(1, "1")).await.ok();
    let tokens: Vec<_> = (0..6).map(|number| format!("slow-forged-{number}")).collect();
    let flood = join_all(tokens.iter().map(|token| read_as(&ctx, token, "shop/agentruns/nightly")));
    tokio::select! {
        answers = flood => panic!("the reviews have ended: {answers:?}"),
        () = async {
            until("the flood is reviewed", || authenticator.reviews() == 7).await;
            read_as(&ctx, "ada", "shop/agentruns/nightly").await.ok();
        } => {}
    }
}

#[tokio::test]
async fn a_cached_token_gives_a_fenced_pod_nothing() {
    let (ctx, authenticator) = counted(test_config()).await;
    ctx.attach("pod-1", INSTANCE).await.ok();
    ctx.lose_pod(1).await;
    assert_eq!(ctx.attach("pod-1", INSTANCE).await.code(), "FENCED");
    assert_eq!(ctx.post("turns/1", commit(1, "1")).await.code(), "FENCED");
    assert_eq!(authenticator.reviews(), 1, "the verdict was cached: the store has refused");
}
