//! A case on both databases.

/// Makes a test of each of these cases for each database: `crate::Face::file` and `crate::Face::postgres` make the face
/// that it is given.
macro_rules! on_both {
    ($($case:ident),+ $(,)?) => {
        mod file {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                super::$case(&crate::Face::file().await).await;
            })+
        }
        mod postgres {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                super::$case(&crate::Face::postgres().await).await;
            })+
        }
    };
}
pub(crate) use on_both;
