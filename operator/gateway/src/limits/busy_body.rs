//! A response body that keeps its connection busy until it is sent.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes};
use axum::response::Response;
use hyper::body::{Body as HttpBody, Frame, SizeHint};

use crate::limits::connections::BusyGuard;

struct BusyBody {
    body: Body,
    _busy: BusyGuard,
}

/// The response, whose body holds the guard.
pub(crate) fn hold_busy(response: Response, busy: BusyGuard) -> Response {
    response.map(|body| Body::new(BusyBody { body, _busy: busy }))
}

impl HttpBody for BusyBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
