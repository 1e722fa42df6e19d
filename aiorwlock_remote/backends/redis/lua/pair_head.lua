-- The published readers' set of a pair (S3). A wrong type of key is found before anything
-- is changed.
--
-- KEYS  5 the set   6 in a cluster: the prefix of the slot's channels

SET = KEYS[5]
wake = KEYS[6]
WRITER_VALUE, READERS_VALUE = '^w(.+)$', '^r$'
members = typed('set', 'SCARD', SET)
