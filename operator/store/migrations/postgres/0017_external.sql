-- Whether the agent's own engine keeps the checkpoints: no worker attaches, and nothing fences it.
ALTER TABLE runs ADD COLUMN external boolean NOT NULL DEFAULT false;
