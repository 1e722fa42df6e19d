-- The published set of a pair (S3). A wrong type under it is found before anything is
-- changed.

local SET = KEYS[5]
local members = call('SCARD', SET)
