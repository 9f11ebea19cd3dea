//! Runs a case on both databases.

/// Makes a test of each case for each database. The test crate provides `crate::Engine::file` and
/// `crate::Engine::postgres`.
macro_rules! on_both_databases {
    ($($case:ident),+ $(,)?) => {
        mod file {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                super::$case(&crate::Engine::file().await).await;
            })+
        }
        mod postgres {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                super::$case(&crate::Engine::postgres().await).await;
            })+
        }
    };
}
pub(crate) use on_both_databases;
