-- The random nonce that the pod of an attempt carries. NULL: the attempt was reserved by a program that knew no nonce.
-- Empty: no pod of the attempt was created yet.
ALTER TABLE attempts ADD COLUMN pod_nonce text;
