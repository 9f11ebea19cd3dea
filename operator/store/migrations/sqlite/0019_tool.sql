-- Name of the tool that a call is of, as its first claim that named it said.
ALTER TABLE calls ADD COLUMN tool TEXT;
