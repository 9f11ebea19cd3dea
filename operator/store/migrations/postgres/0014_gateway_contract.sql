-- The version of the workers' contract that a gateway serves. A gateway of a version before this one does not say it.
ALTER TABLE gateways ADD COLUMN contract integer NOT NULL DEFAULT 1;
