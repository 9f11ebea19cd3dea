//! Whose failure an error of the database is.

use crate::db_error::DbError;

/// Whose failure an error is. This decides what else it affects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// The statement's: another statement may succeed, on the same connection too.
    Statement,
    /// The server's: it lacks disk, memory or connections, or is damaged. The next statement fails alike. Open
    /// connections are still good.
    Server,
    /// The connection's: it is lost, or leads to a server that does not take this process's writes. The other idle
    /// connections probably do the same.
    Connection,
}

impl Failure {
    /// Classifies an error by its SQLSTATE.
    pub fn of(fault: &DbError) -> Self {
        match (fault, fault.code()) {
            (_, Some(code)) => Self::of_code(&code),
            (DbError::Unusable(_) | DbError::OtherDataKey, None) => Self::Statement,
            (DbError::Corrupt(_) | DbError::Gone(_) | DbError::Full(_), None) => Self::Server,
            (DbError::Database(_), None) => Self::Connection,
        }
    }

    fn of_code(code: &str) -> Self {
        match code.get(..2) {
            // The server is read-only; the plan of a prepared statement no longer fits the tables.
            _ if matches!(code, "25006" | "0A000") => Self::Connection,
            // A damaged page or index: rows elsewhere are not affected.
            _ if matches!(code, "XX001" | "XX002") => Self::Statement,
            // The server shuts down, starts up or ends the session. (Not 57014: a statement took too long.)
            Some("57") if code.starts_with("57P") => Self::Connection,
            // A broken connection; a login that is refused.
            Some("08" | "28") => Self::Connection,
            // Too little disk, memory or connections; an input/output error; an internal error.
            Some("53" | "58" | "XX") => Self::Server,
            _ => Self::Statement,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_class_of_an_error_says_whose_failure_it_is() {
        let cases = [
            (
                Failure::Statement,
                &["22003", "23505", "40P01", "42P01", "55P03", "57014", "P0001", "XX001", "XX002"][..],
            ),
            (Failure::Server, &["53100", "53200", "53300", "58030", "58P01", "XX000"]),
            (Failure::Connection, &["08006", "08P01", "25006", "28000", "28P01", "57P01", "57P03", "0A000"]),
        ];
        for (failure, codes) in cases {
            for code in codes {
                assert_eq!(Failure::of_code(code), failure, "{code}");
            }
        }
    }

    #[test]
    fn an_error_without_a_code_is_of_the_connection() {
        assert_eq!(Failure::of(&DbError::unavailable("reset by peer")), Failure::Connection);
    }
}
