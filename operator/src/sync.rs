//! Locks that outlive a panic of their holder: what they guard is a cache.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks, whatever happened to the last holder.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
