-- The waits of a run that were answered since its head, or lately, however many it has had.
CREATE INDEX waits_answered ON waits (run, answered_at) WHERE answered_at IS NOT NULL AND NOT undone;

-- The wait that a message has answered.
CREATE INDEX waits_by_message ON waits (run, position) WHERE position IS NOT NULL AND NOT undone;
