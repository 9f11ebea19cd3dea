//! What the operating system allows this process: file descriptors and memory.

use std::fs;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors for everything but the gateway's connections: the store, the API server, probes, and what starts with the
/// process.
const OTHER_DESCRIPTORS: u64 = 256;

/// The memory limit of the container, in a cgroup of version 2.
const MEMORY_LIMIT: &str = "/sys/fs/cgroup/memory.max";

/// Raises the soft limit of open files as far as it may be, and returns how many of these connections there is room for.
///
/// Many container runtimes start a process with a soft limit of 1,024 and a much higher hard limit.
pub fn connections(wanted: usize) -> usize {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!(%error, "the limit of open files cannot be raised");
    }
    let descriptors = getrlimit(Resource::Nofile).current;
    let connections = descriptors.map_or(wanted, |descriptors| wanted.min(room_for_connections(descriptors)));
    if connections < wanted {
        tracing::warn!(
            wanted,
            connections,
            descriptors,
            "the process may open fewer files than the gateway may have connections: the limit of connections is lowered"
        );
    }
    connections
}

/// Connections that fit beside everything else: at least one.
fn room_for_connections(descriptors: u64) -> usize {
    usize::try_from(descriptors.saturating_sub(OTHER_DESCRIPTORS)).unwrap_or(usize::MAX).max(1)
}

/// Logs a warning if the container may use less memory than the gateway's limits allow for.
pub fn warn_of_little_memory(needed: usize) {
    let limit = fs::read_to_string(MEMORY_LIMIT).ok().and_then(|text| text.trim().parse::<usize>().ok());
    if let Some(limit) = limit.filter(|limit| *limit < needed) {
        tracing::warn!(
            limit,
            needed,
            "the memory limit of the container is below what the gateway's limits allow for: it may be killed under load"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_descriptors_for_the_store_and_the_probes() {
        assert_eq!(room_for_connections(1_024), 768);
        assert_eq!(room_for_connections(10), 1);
        let limit = getrlimit(Resource::Nofile);
        assert_eq!(connections(1), 1);
        assert_eq!(getrlimit(Resource::Nofile).current, limit.maximum, "the soft limit is raised");
    }
}
