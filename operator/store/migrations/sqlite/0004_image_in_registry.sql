-- Whether a registry knows the worker's image by `image_digest`. The digest of an image that was loaded onto a node may be
-- that of its configuration. NULL: not known.
ALTER TABLE attempts ADD COLUMN image_in_registry INTEGER;
