//! Which schema a database has, and whether this binary can use it: the rules that both engines share.

/// Description of migration 1. Development builds before the first release described theirs otherwise.
pub(crate) const BASELINE: &str = "baseline";

/// The migrations that were applied to a database.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct AppliedMigrations {
    /// Number of the latest one. 0: none was applied.
    pub latest: i64,
    /// Description of migration 1, if it was applied.
    pub first: Option<String>,
}

impl AppliedMigrations {
    /// Refuses a database that cannot be migrated to `known`, this binary's latest migration. Returns why.
    pub fn can_be_migrated(&self, known: i64) -> Result<(), String> {
        let Self { latest, first } = self;
        if first.as_deref().is_some_and(|first| first != BASELINE) {
            return Err("the database was created by an earlier development build of dalsegno, and cannot be migrated: \
                        export its runs with that build, then start with an empty database"
                .to_owned());
        }
        if *latest > known {
            return Err(format!(
                "the database's schema is {latest}, newer than this binary's ({known}): a newer dalsegno has used it"
            ));
        }
        Ok(())
    }

    /// Refuses a database whose latest migration is not `known`. Returns why.
    pub fn is_current(&self, known: i64) -> Result<(), String> {
        self.can_be_migrated(known)?;
        let latest = self.latest;
        if latest < known {
            return Err(format!(
                "the database's schema is {latest}, this binary's is {known}: run `dalsegno migrate`"
            ));
        }
        Ok(())
    }
}
