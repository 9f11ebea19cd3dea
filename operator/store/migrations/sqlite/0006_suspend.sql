-- Suspending. `suspend` is set exactly while `suspend_requested_at` is. `suspend_told_at`: when the worker was notified.
ALTER TABLE runs ADD COLUMN suspend_requested_at INTEGER;
ALTER TABLE runs ADD COLUMN suspend_told_at INTEGER;
-- How long a notified worker has to park, in milliseconds.
ALTER TABLE runs ADD COLUMN suspend_ms INTEGER NOT NULL DEFAULT 300000;
-- The park that ended the last attempt with a worker, made with `last_capability`.
ALTER TABLE runs ADD COLUMN park_id BLOB;
