-- In which turn a call was claimed or ended last, which may be long after the turn that it was planned in; null: neither since
-- it was first seen.
ALTER TABLE calls ADD COLUMN touched_turn INTEGER;
