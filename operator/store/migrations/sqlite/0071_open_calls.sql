-- How much the open calls of a run are: those that are started, and those of the open turn that are planned or have ended. A
-- lookup carries all of them, so that they are held to a limit as they are made, and nobody reads them for it.

ALTER TABLE calls ADD COLUMN arguments_bytes INTEGER NOT NULL DEFAULT 0;
ALTER TABLE calls ADD COLUMN result_bytes INTEGER NOT NULL DEFAULT 0;

-- What was kept before counts as it is kept.
UPDATE calls SET arguments_bytes = coalesce(length(arguments), 0), result_bytes = coalesce(length(result), 0);

-- In any other turn than the one beside it the number says nothing, and they are counted.
ALTER TABLE runs ADD COLUMN open_calls_bytes INTEGER;
ALTER TABLE runs ADD COLUMN open_calls_turn INTEGER;
