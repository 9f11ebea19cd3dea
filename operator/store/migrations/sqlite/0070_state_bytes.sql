-- How large the state at the head is at most, and of which boundary that was said: what moves the head otherwise, or an older
-- binary, leaves it behind, and it counts for nothing.
ALTER TABLE runs ADD COLUMN state_bytes INTEGER DEFAULT 0;
ALTER TABLE runs ADD COLUMN state_hash BLOB;
