-- The store's own key for signatures, where it is given none: made once.
CREATE TABLE signing_key (
    only_row   boolean NOT NULL PRIMARY KEY DEFAULT true CHECK (only_row),
    pkcs8      bytea   NOT NULL,
    created_at bigint  NOT NULL
);
