-- A readers-writer lock in the resource's own row: one text for all databases.
--
-- MariaDB and MySQL evaluate SET from left to right and see NEW values, the other
-- databases see the OLD ones: so the mark is set before the count, from the old count.
-- Names are checked and quoted, values are bound; marks are literals, which also fit an
-- enumerated column. {and_} is empty or a condition that is always true; {freed} is
-- empty or notifies waiters if the row is free now.

-- name: read_lock
UPDATE {table}
SET {mark} = 'ReadLock', {count} = {count} + 1, {reason} = {b1}
WHERE {key} = {b2}
AND (({mark} = 'Unlock' AND {count} = 0) OR ({mark} = 'ReadLock' AND {count} > 0)){and_}

-- name: read_unlock
UPDATE {table}
SET {mark} = CASE WHEN {count} > 1 THEN {mark} ELSE 'Unlock' END,
{count} = {count} - 1, {reason} = {b1}
WHERE {key} = {b2} AND {mark} = 'ReadLock' AND {count} > 0{and_}{freed}

-- name: write_lock
UPDATE {table}
SET {mark} = 'WriteLock', {reason} = {b1}
WHERE {key} = {b2} AND {mark} = 'Unlock' AND {count} = 0{and_}

-- name: write_unlock
UPDATE {table}
SET {mark} = 'Unlock', {reason} = {b1}
WHERE {key} = {b2} AND {mark} = 'WriteLock'{and_}{freed}

-- name: look
SELECT {mark}, {count}, {reason} FROM {table} WHERE {key} = {b1}

-- With leases: a row is read and swapped. Times are those of the database.
-- name: read
SELECT {mark}, {count}, {reason}, {grants}, {now} FROM {table} WHERE {key} = {b1}

-- name: swap_first
UPDATE {table} SET {mark} = {b1}, {count} = {b2}, {reason} = {b3}, {grants} = {b4}
WHERE {key} = {b5} AND {mark} = {b6} AND {count} = {b7}
AND {grants} IS NULL{and_}{freed}

-- name: swap
UPDATE {table} SET {mark} = {b1}, {count} = {b2}, {reason} = {b3}, {grants} = {b4}
WHERE {key} = {b5} AND {mark} = {b6} AND {count} = {b7} AND {grants} = {b8}{and_}{freed}

-- For error hints: statements that an administrator runs.
-- name: free_row
UPDATE {table} SET {mark} = 'Unlock', {count} = 0 WHERE {key} = {literal}

-- name: insert_row
INSERT INTO {table} ({key}, …) VALUES (…)

-- name: clear_grants
UPDATE {table} SET {grants} = NULL WHERE {key} = {literal}
