//! Statements that read pages of records, for both databases.
//!
//! They go from key to key, and of each key read only what the key holds: what was replaced costs nothing, however often
//! a key was replaced. Each step has a bound that an index can use.
//!
//! The parameters are those of [`dalsegno_format::record_pages::PageBounds`]: the run `$1`, the space `$2`, the first
//! key `$3`, the number `$4`, the end `$5`, at most `$6` entries or keys, and one entry more than `$7` bytes.

use dalsegno_protocol::RecordOrder;

/// SQL: the number of the last change of the key `keys.key` that replaced everything before; 0 if there is none.
pub(crate) const LAST_REPLACEMENT: &str = "coalesce((SELECT max(o.seq) FROM records o WHERE o.run = $1 AND o.space = $2 \
     AND o.key = keys.key AND o.op IN ('put', 'delete') AND NOT o.undone), 0)";

/// SQL: the number of the last change of the key `keys.key`.
const LAST_CHANGE: &str = "(SELECT max(o.seq) FROM records o WHERE o.run = $1 AND o.space = $2 AND o.key = keys.key \
     AND NOT o.undone)";

/// SQL: 1 if the key `keys.key` holds something, which its last change shows; else 0.
const HOLDS: &str = "(SELECT CASE o.op WHEN 'delete' THEN 0 ELSE 1 END FROM records o \
     WHERE o.run = $1 AND o.space = $2 AND o.key = keys.key AND NOT o.undone ORDER BY o.seq DESC LIMIT 1)";

/// SQL of one database. Each joins a table with records, and goes through the table row by row.
pub(crate) struct RecordJoins {
    /// Joins `starts` with the records `r` of each key. `{range}`: which of them; `{order}`: their order.
    pub of_each_key: &'static str,
    /// Joins `weighed` with the record `r` of each entry. A condition follows.
    pub of_each_entry: &'static str,
}

/// The words in which the two orders differ.
struct Direction {
    order: &'static str,
    /// Whether a key is within the bounds.
    is_within: &'static str,
    /// Whether a key comes after the key `keys.key` and is within the bounds.
    is_next: &'static str,
    /// SQL: the number in the key `keys.key` from which on the page shows it.
    first: String,
    /// SQL: the number in the key `keys.key` before which the page shows it; none in ascending order, because an index
    /// scan begins at one bound.
    end: Option<&'static str>,
}

impl Direction {
    fn of(order: RecordOrder) -> Self {
        match order {
            RecordOrder::Asc => Self {
                order: "ASC",
                is_within: "key >= $3 AND key < $5",
                is_next: "r.key > keys.key AND r.key < $5",
                first: format!(
                    "CASE WHEN keys.key = $3 AND $4 >= {LAST_REPLACEMENT} THEN $4 + 1 ELSE {LAST_REPLACEMENT} END"
                ),
                end: None,
            },
            RecordOrder::Desc => Self {
                order: "DESC",
                is_within: "key >= $3 AND key <= $5",
                is_next: "r.key < keys.key AND r.key >= $3",
                first: LAST_REPLACEMENT.to_owned(),
                end: Some("CASE WHEN keys.key = $5 THEN $4 ELSE 9223372036854775807 END"),
            },
        }
    }

    /// SQL that goes through the keys, each with `found`: what `counted` has counted in the keys before it. It ends once
    /// that are `$6`.
    fn keys(&self, counted: &str) -> String {
        let Self { order, is_within, is_next, .. } = self;
        format!(
            "WITH RECURSIVE keys (key, found) AS ( \
                 SELECT key, found FROM ( \
                     SELECT key, CAST(0 AS bigint) AS found FROM records \
                     WHERE run = $1 AND space = $2 AND {is_within} AND NOT undone ORDER BY key {order} LIMIT 1 \
                 ) AS first \
                 UNION ALL \
                 SELECT ( \
                     SELECT r.key FROM records r \
                     WHERE r.run = $1 AND r.space = $2 AND {is_next} AND NOT r.undone ORDER BY r.key {order} LIMIT 1 \
                 ), keys.found + {counted} \
                 FROM keys WHERE keys.key IS NOT NULL AND keys.found < $6 \
             )"
        )
    }
}

/// A page of what keys hold.
pub(crate) fn held_records(order: RecordOrder, joins: &RecordJoins) -> String {
    let direction = Direction::of(order);
    let Direction { order, ref first, end, .. } = direction;
    let (own, before_end) = match end {
        Some(end) => (format!(", {end} AS after_last"), " AND r.seq < starts.after_last"),
        None => (String::new(), ""),
    };
    let not_after = end.map(|end| format!(" AND r.seq < {end}")).unwrap_or_default();
    let keys = direction.keys(&format!(
        "(SELECT count(*) FROM ( \
             SELECT 1 FROM records r \
             WHERE r.run = $1 AND r.space = $2 AND r.key = keys.key AND r.op <> 'delete' AND NOT r.undone \
               AND r.seq >= {first}{not_after} ORDER BY r.seq {order} LIMIT $6 \
         ) AS held)"
    ));
    let of_each_key = joins.of_each_key.replace("{range}", &format!("r.seq >= starts.first{before_end}"));
    let of_each_key = of_each_key.replace("{order}", order);
    format!(
        "{keys}, starts AS MATERIALIZED ( \
             SELECT key, {first} AS first{own} FROM keys WHERE key IS NOT NULL \
         ), page AS ( \
             SELECT r.key, r.seq, r.size FROM starts CROSS JOIN {of_each_key} \
             ORDER BY r.key {order}, r.seq {order} LIMIT $6 \
         ), weighed AS ( \
             SELECT key, seq, count(*) OVER () AS found, \
                 sum(size) OVER (ORDER BY key {order}, seq {order}) - size AS before FROM page \
         ) \
         SELECT r.key, r.seq, r.entry_id, r.value, r.turn, r.size, weighed.found FROM weighed CROSS JOIN {} \
           AND weighed.before < $7 ORDER BY r.key {order}, r.seq {order}",
        joins.of_each_entry
    )
}

/// A page of keys that hold something, each with the number of its last change. In ascending order the key `$3` is on the
/// page if `$4` is 0. In descending order the key `$5` never is.
pub(crate) fn held_keys(order: RecordOrder) -> String {
    let direction = match order {
        // One bound of the index: a page behind a key with many entries does not go through them.
        RecordOrder::Asc => Direction {
            is_within: "(key, seq) > ($3, CASE CAST($4 AS bigint) WHEN 0 THEN -1 ELSE 9223372036854775807 END) \
                AND key < $5",
            ..Direction::of(order)
        },
        // `$4` has a type only if the statement names it.
        RecordOrder::Desc => Direction {
            is_within: "key >= $3 AND key < $5 AND CAST($4 AS bigint) >= 0",
            ..Direction::of(order)
        },
    };
    let (keys, order) = (direction.keys(&format!("coalesce({HOLDS}, 0)")), direction.order);
    format!(
        "{keys} SELECT key, {LAST_CHANGE} AS seq FROM keys WHERE key IS NOT NULL AND {HOLDS} = 1 \
         ORDER BY key {order} LIMIT $6"
    )
}
