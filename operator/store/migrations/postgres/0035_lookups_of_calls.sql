-- What a checkpoint tells of the calls is found without reading the others: however many a run has made.
CREATE INDEX calls_planned ON calls (run) WHERE state = 'planned';
