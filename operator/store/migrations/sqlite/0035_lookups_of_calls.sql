-- What an attach and a checkpoint ask of the calls is found without reading the others: however many a run has made.
CREATE INDEX calls_by_turn ON calls (run, turn, ordinal);

DROP INDEX calls_started;
CREATE INDEX calls_started ON calls (run, ordinal) WHERE state = 'started';
