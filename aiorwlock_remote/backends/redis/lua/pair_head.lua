-- The published set of a pair (S3). A wrong type under it is found before anything is
-- changed.
--
-- KEYS  5 the set   6 in a cluster: what else is the fifth

local SET = KEYS[5]
wake = KEYS[6]
WRITER_SEAT, READERS_SEAT = '^w(.+)$', '^r$'
local members = typed('set', 'SCARD', SET)
