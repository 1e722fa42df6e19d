-- The statements of the SQLite store, by name. ``mutex_locks`` is the published mutex,
-- ``doormans`` holds everything else; ``boots`` has one row, which says of which boot
-- and by which clock their times are.

-- name: schema
CREATE TABLE IF NOT EXISTS mutex_locks (
    resource_type VARCHAR NOT NULL,
    resource_id INTEGER NOT NULL,
    ticket VARCHAR NOT NULL,
    acquired_at TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP,
    PRIMARY KEY (resource_type, resource_id)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS doormans (
    resource_type VARCHAR NOT NULL,
    resource_id INTEGER NOT NULL,
    active_readers TEXT NOT NULL,
    has_pending_writer INTEGER NOT NULL,
    pending_writer TEXT,
    updated_at TIMESTAMP NOT NULL,
    created_at TIMESTAMP NOT NULL,
    boot TEXT NOT NULL,
    record TEXT NOT NULL,
    PRIMARY KEY (resource_type, resource_id)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS boots (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    boot TEXT NOT NULL,
    shift TEXT NOT NULL
);

-- name: boot
SELECT boot, shift FROM boots;

-- name: keep_boot
REPLACE INTO boots (one, boot, shift) VALUES (1, ?, ?);

-- name: load
SELECT d.record, d.boot, m.ticket,
    coalesce(strftime('%s', m.acquired_at), m.acquired_at)
FROM (SELECT ? AS resource_type, ? AS resource_id) AS k
LEFT JOIN doormans AS d USING (resource_type, resource_id)
LEFT JOIN mutex_locks AS m USING (resource_type, resource_id);

-- name: save
INSERT INTO doormans (
    resource_type, resource_id, active_readers, has_pending_writer, pending_writer,
    updated_at, created_at, boot, record
) VALUES (?, ?, ?, ?, ?, datetime(?, 'unixepoch'), datetime(?, 'unixepoch'), ?, ?)
ON CONFLICT (resource_type, resource_id) DO UPDATE SET
    active_readers = excluded.active_readers,
    has_pending_writer = excluded.has_pending_writer,
    pending_writer = excluded.pending_writer,
    updated_at = excluded.updated_at,
    boot = excluded.boot,
    record = excluded.record;

-- name: sit
INSERT INTO mutex_locks (resource_type, resource_id, ticket, acquired_at)
VALUES (?, ?, ?, datetime(?, 'unixepoch'))
ON CONFLICT (resource_type, resource_id) DO UPDATE SET
    ticket = excluded.ticket,
    acquired_at = excluded.acquired_at;

-- name: vacate
DELETE FROM mutex_locks WHERE resource_type = ? AND resource_id = ?;

-- name: scan
SELECT k.resource_type, k.resource_id, d.record, d.boot, m.ticket,
    coalesce(strftime('%s', m.acquired_at), m.acquired_at)
FROM (
    SELECT resource_type, resource_id FROM doormans
    UNION SELECT resource_type, resource_id FROM mutex_locks
) AS k
LEFT JOIN doormans AS d USING (resource_type, resource_id)
LEFT JOIN mutex_locks AS m USING (resource_type, resource_id)
ORDER BY k.resource_type, k.resource_id;

-- The last key of a portion of doormans, of so many rows behind a key.
-- name: portion
SELECT resource_type, resource_id FROM (
    SELECT resource_type, resource_id FROM doormans
    WHERE (resource_type, resource_id) > (?, ?)
    ORDER BY resource_type, resource_id LIMIT ?
) ORDER BY resource_type DESC, resource_id DESC LIMIT 1;

-- name: forget
DELETE FROM doormans
WHERE (resource_type, resource_id) > (?, ?)
AND (resource_type, resource_id) <= (?, ?)
AND updated_at < datetime(?, 'unixepoch') AND NOT EXISTS (
    SELECT 1 FROM mutex_locks AS m
    WHERE m.resource_type = doormans.resource_type
    AND m.resource_id = doormans.resource_id
);
