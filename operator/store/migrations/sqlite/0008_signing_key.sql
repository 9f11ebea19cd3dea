-- The store's own key for signatures, where it is given none: made once.
CREATE TABLE signing_key (
    only_row   INTEGER NOT NULL PRIMARY KEY CHECK (only_row = 1),
    pkcs8      BLOB    NOT NULL,
    created_at INTEGER NOT NULL
) STRICT;
