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
    /// The oldest version of the schema whose programs can use this one.
    pub readable_since: i64,
}

impl AppliedMigrations {
    /// Whether the migrations of this binary, whose latest is `known`, must run. False: a newer program has migrated the
    /// database, and this one can use it. Error: it can neither use nor migrate the database, and why.
    pub fn must_run(&self, known: i64) -> Result<bool, String> {
        let Self { latest, first, readable_since } = self;
        if first.as_deref().is_some_and(|first| first != BASELINE) {
            return Err("the database was created by an earlier development build of dalsegno, and cannot be migrated: \
                        export its runs with that build, then start with an empty database"
                .to_owned());
        }
        if *latest > known && *readable_since > known {
            return Err(format!(
                "the database's schema is {latest}, newer than this binary's ({known}), and needs a dalsegno whose \
                 schema is {readable_since} or newer: install that version, or restore a backup"
            ));
        }
        Ok(*latest <= known)
    }

    /// Refuses a database that this binary, whose latest migration is `known`, cannot use. Returns why.
    pub fn is_usable(&self, known: i64) -> Result<(), String> {
        let latest = self.latest;
        if self.must_run(known)? && latest < known {
            return Err(format!(
                "the database's schema is {latest}, this binary's is {known}: run `dalsegno migrate`"
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn applied(latest: i64, readable_since: i64) -> AppliedMigrations {
        AppliedMigrations { latest, first: Some(BASELINE.to_owned()), readable_since }
    }

    #[test]
    fn a_newer_schema_is_used_if_it_says_so() {
        assert_eq!(applied(8, 7).is_usable(7), Ok(()));
        assert_eq!(applied(8, 7).must_run(7), Ok(false), "there is nothing to migrate");
        let refused = applied(8, 8).is_usable(7).unwrap_err();
        assert!(refused.contains("whose schema is 8 or newer"), "{refused}");
        assert_eq!(applied(8, 8).must_run(7), Err(refused));
    }

    #[test]
    fn an_older_schema_is_migrated_first() {
        assert!(applied(6, 1).is_usable(7).unwrap_err().contains("dalsegno migrate"));
        assert_eq!(applied(6, 1).must_run(7), Ok(true));
        assert_eq!(applied(7, 1).is_usable(7), Ok(()));
    }
}
