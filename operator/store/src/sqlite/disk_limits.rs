//! How the embedded store shares the volume: pure functions of sizes. All sizes are in bytes.
//!
//! One size, the *unit*, is a sixteenth of the volume within bounds. The write-ahead log may grow to one unit, and the
//! reserve is one unit. So the log always fits into the database once the reserve is given up: that is what a full
//! volume needs to recover.

use super::disk::DiskLevel;

/// Smallest unit.
const MIN_UNIT: u64 = 64 << 10;

/// Largest unit.
const MAX_UNIT: u64 = 128 << 20;

/// The log is copied into the database each time that it has grown to this size.
const CHECKPOINT_BYTES: u64 = 4 << 20;

/// What a volume has, and what the store uses of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Space {
    /// Free bytes of the volume.
    pub free: u64,
    /// The file of the write-ahead log.
    pub wal: u64,
    /// Free pages in the database, which it reuses before it grows.
    pub free_pages: u64,
    /// Whether the reserve exists.
    pub has_reserve: bool,
    /// Whether there should be a reserve.
    pub keeps_reserve: bool,
}

impl Space {
    /// How far the database may grow when the log is copied into it.
    fn database_growth(&self) -> u64 {
        self.wal.saturating_sub(self.free_pages)
    }
}

/// What to do with the reserve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReserveStep {
    Keep,
    Make,
    GiveUp,
}

/// The limits of one volume.
#[derive(Clone, Copy, Debug)]
pub(super) struct DiskLimits {
    total: u64,
    unit: u64,
}

impl DiskLimits {
    /// `total`: size of the volume.
    pub fn of_volume(total: u64) -> Self {
        Self { total, unit: (total / 16).clamp(MIN_UNIT, MAX_UNIT) }
    }

    /// Above this size of the log, reads are ended that keep it from being copied.
    pub fn wal_bound(&self) -> u64 {
        self.unit
    }

    /// Above this size the log is copied into the database. When it begins anew, its file is cut to this size, so a
    /// larger file has something to copy.
    pub fn checkpoint_at(&self) -> u64 {
        CHECKPOINT_BYTES.min(self.unit / 2)
    }

    /// Size of the volume.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Size of the reserve.
    pub fn reserve(&self) -> u64 {
        self.unit
    }

    /// Below this much free space a person is warned.
    pub fn warn_below(&self) -> u64 {
        self.total / 5
    }

    /// Whether there is so much space that the free pages of the database do not matter.
    pub fn is_spacious(&self, free: u64) -> bool {
        free > self.warn_below() + self.total / 20
    }

    /// Judges the space. A level is left only once there is clearly more space than where it began. The space of a
    /// reserve that was given up is not for new data, unless the database has as many free pages.
    pub fn level(&self, space: &Space, before: DiskLevel) -> DiskLevel {
        let owes_reserve = space.keeps_reserve && !space.has_reserve && space.free_pages < self.unit;
        let owed = if owes_reserve { self.unit } else { 0 };
        let margin = if before == DiskLevel::Full { self.unit / 2 } else { self.unit / 4 };
        if space.free < space.database_growth() + owed + margin {
            return DiskLevel::Full;
        }
        let enough = match before {
            DiskLevel::Ok => self.warn_below(),
            DiskLevel::Filling | DiskLevel::Full => self.warn_below() + self.total / 20,
        };
        if space.free + space.free_pages < enough { DiskLevel::Filling } else { DiskLevel::Ok }
    }

    /// Decides on the reserve. It is made only if as much again stays free. It is given up if hardly anything is free,
    /// and if the database has so many free pages that only the log needs space.
    pub fn reserve_step(&self, space: &Space) -> ReserveStep {
        let can_reuse_pages = space.free_pages >= self.unit && space.free < self.unit / 2;
        if space.keeps_reserve && !space.has_reserve && space.free >= 2 * self.reserve() + space.wal {
            ReserveStep::Make
        } else if space.has_reserve && (space.free < self.unit / 8 || can_reuse_pages) {
            ReserveStep::GiveUp
        } else {
            ReserveStep::Keep
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// A volume of 160 MiB: its unit is 10 MiB.
    fn limits() -> DiskLimits {
        DiskLimits::of_volume(160 * MIB)
    }

    fn space(free: u64, wal: u64, free_pages: u64) -> Space {
        let [free, wal, free_pages] = [free, wal, free_pages].map(|size| size * MIB);
        Space { free, wal, free_pages, has_reserve: true, keeps_reserve: true }
    }

    #[test]
    fn a_full_log_fits_into_the_reserve_on_a_volume_of_any_size() {
        for total in [1, 24, 1 << 10, 10 << 10, 1 << 20] {
            let limits = DiskLimits::of_volume(total * MIB);
            assert!(limits.reserve() >= limits.wal_bound(), "{total}");
            assert!(limits.checkpoint_at() < limits.wal_bound(), "{total}");
            assert!(limits.wal_bound() + limits.reserve() <= total * MIB / 8, "{total}");
        }
    }

    #[test]
    fn a_level_depends_on_what_the_log_still_needs_and_has_a_hysteresis() {
        use DiskLevel::{Filling, Full, Ok};
        for (space, before, expected) in [
            (space(100, 4, 0), Ok, Ok),
            (space(33, 4, 0), Ok, Ok),
            (space(31, 4, 0), Ok, Filling),
            (space(33, 4, 0), Filling, Filling),
            (space(41, 4, 0), Filling, Ok),
            // Free pages of the database count: it fills them first.
            (space(20, 4, 30), Ok, Ok),
            (space(7, 4, 0), Filling, Filling),
            (space(6, 4, 0), Filling, Full),
            (space(8, 4, 0), Full, Full),
            (space(9, 4, 0), Full, Filling),
            (space(3, 4, 4), Filling, Filling),
            // A read that pins the log: the whole log must still fit into the database.
            (space(70, 69, 0), Filling, Full),
        ] {
            assert_eq!(limits().level(&space, before), expected, "{space:?} after {before:?}");
        }
    }

    #[test]
    fn the_space_of_a_reserve_that_was_given_up_is_not_for_new_data() {
        let level = |space| limits().level(&space, DiskLevel::Filling);
        let given_up = |free, free_pages| Space { has_reserve: false, ..space(free, 0, free_pages) };
        assert_eq!(level(given_up(12, 0)), DiskLevel::Full);
        assert_eq!(level(given_up(13, 0)), DiskLevel::Filling);
        assert_eq!(level(given_up(12, 10)), DiskLevel::Filling, "only the log needs space");
        let never_made = Space { keeps_reserve: false, ..given_up(12, 0) };
        assert_eq!(level(never_made), DiskLevel::Filling);
    }

    #[test]
    fn the_reserve_is_given_up_for_the_log_and_made_again_when_there_is_space() {
        use ReserveStep::{GiveUp, Keep, Make};
        let gone = |free| Space { has_reserve: false, ..space(free, 2, 0) };
        for (space, expected) in [
            (space(100, 4, 0), Keep),
            (space(2, 4, 0), Keep),
            (space(1, 4, 0), GiveUp),
            (space(4, 4, 10), GiveUp),
            (space(5, 4, 10), Keep),
            (gone(21), Keep),
            (gone(22), Make),
        ] {
            assert_eq!(limits().reserve_step(&space), expected, "{space:?}");
        }
    }
}
