-- The statements of the PostgreSQL store, by name; {schema} stands for nothing, or for
-- the schema of the tables and a dot. Times travel as text, in UTC.
--
-- A step is one statement, and so one transaction: `change` or `make`, with the expected
-- mutex row, then what happens to the mutex row, then `tell`. `statements.py` puts it
-- together and makes $1, $2, … of the :names. The doormans row is the lock between
-- programs of this library, the primary key of mutex_locks the lock between those and
-- others.
--
-- All parts of a statement see the tables as they were when it began. A statement that
-- has waited for the doormans row finds its new version, and changes nothing. If another
-- program takes or changes the mutex row meanwhile, the second part changes nothing, and
-- `both` divides by zero, which undoes the first.

-- name: look
SELECT to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS.US') AS now,
  NULL AS fence,
  to_char(d.created_at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS.US') AS created,
  d.version, d.record, m.ticket,
  to_char(CASE WHEN m.acquired_at >= '0001-01-01 00:00:00+00' THEN m.acquired_at END
    AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS.US') AS since
FROM (SELECT :i_kind::varchar AS resource_type, :i_number::integer AS resource_id) AS k
LEFT JOIN {schema}doormans AS d USING (resource_type, resource_id)
LEFT JOIN {schema}mutex_locks AS m USING (resource_type, resource_id)

-- name: change
WITH {unlocked}kept AS (
  UPDATE {schema}doormans AS d
  SET active_readers = :n_readers::text, has_pending_writer = :n_waits::integer <> 0,
    pending_writer = :n_writer::varchar, updated_at = clock_timestamp(),
    version = :n_version::varchar, record = {record}
  WHERE d.resource_type = :i_kind::varchar AND d.resource_id = :i_number::integer
    AND d.version = :i_version::varchar
    AND clock_timestamp() <= (:i_latest::varchar || '+00')::timestamptz
    {and_unlocked}
    {and_seat}
    {and_waits}
  RETURNING {fence} AS fence
)

-- How long the statement waits for a locked row, in milliseconds. The limit is set when
-- the row was found and before it is locked, and ends with the transaction.
-- name: waits
AND set_config('lock_timeout', :wait::text, true) IS NOT NULL

-- Where many steps meet: the swap is refused at once if another transaction has the row.
-- To wait would be in vain, because the other leaves another version. And it would cost
-- all others: a statement that has waited locks the new version before it compares, and
-- keeps it locked until its own commit has reached the disk.
-- name: unlocked
unlocked AS MATERIALIZED (
  SELECT 1 FROM {schema}doormans AS d
  WHERE d.resource_type = :i_kind::varchar AND d.resource_id = :i_number::integer
    AND d.version = :i_version::varchar
  FOR NO KEY UPDATE SKIP LOCKED
),

-- name: if_unlocked
AND EXISTS (SELECT FROM unlocked)

-- A row without our columns' values counts as none.
-- name: make
WITH kept AS (
  INSERT INTO {schema}doormans AS d (
    resource_type, resource_id, active_readers, has_pending_writer, pending_writer,
    updated_at, created_at, version, record
  )
  SELECT :i_kind::varchar, :i_number::integer,
    :n_readers::text, :n_waits::integer <> 0, :n_writer::varchar,
    t.at, t.at, :n_version::varchar, {record}
  FROM (SELECT clock_timestamp() AS at) AS t
  WHERE t.at <= (:i_latest::varchar || '+00')::timestamptz
    {and_seat}
  ON CONFLICT (resource_type, resource_id) DO UPDATE SET
    active_readers = excluded.active_readers,
    has_pending_writer = excluded.has_pending_writer,
    pending_writer = excluded.pending_writer, updated_at = excluded.updated_at,
    version = excluded.version, record = excluded.record
  WHERE d.version IS NULL
  RETURNING {fence} AS fence
)

-- What is stored if a phase begins: its fence is the greater of the given one and the
-- time right now, in microseconds. The stored value is returned.
-- name: begins
(
  GREATEST(:n_fence::bigint, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint)
  || :n_record::text
)

-- name: begun
split_part(d.record, ' ', 1)

-- The expected mutex row. Checked if it is to stay, and if the whole state is a guess:
-- an error in the server's log is for what seldom happens.
-- name: free
AND NOT EXISTS (
  SELECT FROM {schema}mutex_locks AS m
  WHERE m.resource_type = :i_kind::varchar AND m.resource_id = :i_number::integer
)

-- name: taken
AND EXISTS (
  SELECT FROM {schema}mutex_locks AS m
  WHERE m.resource_type = :i_kind::varchar AND m.resource_id = :i_number::integer
    AND m.ticket = :i_ticket::varchar
    AND m.acquired_at = (:i_since::varchar || '+00')::timestamptz
)

-- Waits for a row that another program inserts at the same time.
-- name: sit
, seat AS (
  INSERT INTO {schema}mutex_locks (resource_type, resource_id, ticket, acquired_at)
  SELECT :i_kind::varchar, :i_number::integer,
    :t_ticket::varchar, (:t_since::varchar || '+00')::timestamptz
  FROM kept
  ON CONFLICT DO NOTHING
  RETURNING 1
)

-- name: move
, seat AS (
  UPDATE {schema}mutex_locks AS m
  SET ticket = :t_ticket::varchar,
    acquired_at = (:t_since::varchar || '+00')::timestamptz
  WHERE m.resource_type = :i_kind::varchar AND m.resource_id = :i_number::integer
    AND m.ticket = :i_ticket::varchar
    AND m.acquired_at = (:i_since::varchar || '+00')::timestamptz
    AND EXISTS (SELECT FROM kept)
  RETURNING 1
)

-- name: leave
, seat AS (
  DELETE FROM {schema}mutex_locks AS m
  WHERE m.resource_type = :i_kind::varchar AND m.resource_id = :i_number::integer
    AND m.ticket = :i_ticket::varchar
    AND m.acquired_at = (:i_since::varchar || '+00')::timestamptz
    AND EXISTS (SELECT FROM kept)
  RETURNING 1
)

-- name: tell
SELECT {done} AS done,
  to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS.US') AS now,
  fence, NULL AS created, NULL AS version, NULL AS record, NULL AS ticket, NULL AS since FROM kept

-- If it was not done: what is stored, or was when the statement began.
-- name: else
UNION ALL
SELECT {refused}, there.* FROM (
{look}
) AS there
WHERE NOT EXISTS (SELECT FROM kept)

-- name: both
1 / (SELECT count(*) FROM seat) = 1

-- NULL if another transaction has the row, or had it when the statement began.
-- name: refused_or_locked
CASE WHEN there.version IS DISTINCT FROM :i_version::varchar
  OR EXISTS (SELECT FROM unlocked) THEN false END

-- The commit need not wait for the disk. If a crash undoes a release, the grant is held
-- again until its lease ends (no grant was made since: its commit would have come after
-- this one and waited for the disk); a waiter whose entry is lost asks again.
-- name: lazily
AND set_config('synchronous_commit', 'off', true) = 'off'

-- Many renewals: no mutex row changes, nobody is notified, and nobody is waited for. One
-- commit for all of them, where each would wait for the disk. What has no row in the
-- answer was not done, and is asked for alone: it tells why. The renewals are one JSON
-- text: before it sends its first array, the driver asks what an array is.
-- name: renewals
WITH asked AS (
  SELECT i_kind AS resource_type, i_number AS resource_id, i_version AS version,
    i_ticket AS ticket, i_since AS since, i_latest AS latest,
    n_readers, n_waits, n_writer, n_version, n_record
  FROM json_to_recordset($1::text::json) AS a (
    i_kind varchar, i_number integer, i_version varchar,
    i_ticket varchar, i_since varchar, i_latest varchar,
    n_readers text, n_waits integer, n_writer varchar, n_version varchar, n_record text
  )
), unlocked AS MATERIALIZED (
  SELECT a.* FROM asked AS a CROSS JOIN LATERAL (
    SELECT 1 FROM {schema}doormans AS d
    WHERE d.resource_type = a.resource_type AND d.resource_id = a.resource_id
      AND d.version = a.version
      AND EXISTS (
        SELECT FROM {schema}mutex_locks AS m
        WHERE m.resource_type = a.resource_type AND m.resource_id = a.resource_id
          AND m.ticket = a.ticket AND m.acquired_at = (a.since || '+00')::timestamptz
      )
    FOR NO KEY UPDATE OF d SKIP LOCKED
  ) AS one
), kept AS (
  UPDATE {schema}doormans AS d
  SET active_readers = u.n_readers, has_pending_writer = u.n_waits <> 0,
    pending_writer = u.n_writer, updated_at = clock_timestamp(),
    version = u.n_version, record = u.n_record
  FROM unlocked AS u
  WHERE d.resource_type = u.resource_type AND d.resource_id = u.resource_id
    AND d.version = u.version
    AND clock_timestamp() <= (u.latest || '+00')::timestamptz
  RETURNING d.version
)
SELECT version,
  to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS.US') AS now
FROM kept

-- On the channel of each client, see `listener.py`: which resource; which grant was
-- pushed to the client; or if the mutex is free, there is room, and no ticket is in the
-- record, the record that is stored now.
-- name: wake
AND (
  SELECT count(pg_notify('rwlock_' || gate, {news}::text))
  FROM unnest(:wakes::text[]) AS gate
) > 0

-- To the process that holds the resource: its version with a new queue entry.
-- name: came
AND (SELECT count(pg_notify('rwlock_' || :ear::varchar,
  json_build_array(:i_kind::varchar, :i_number::integer, :n_version::varchar)::text
))) > 0

-- name: news
json_build_array(:i_kind::varchar, :i_number::integer)

-- A pushed grant: its fence, from when to when it lasts, and the proof that its sender
-- knows the ticket (``sha256_proof_of`` in `core/pushed.py`). The server has chosen the
-- fence, so that it makes the proof, too. Then the record that is stored now, sealed
-- with the ticket, if there is room.
-- name: pushed_news
json_build_array(
  :i_kind::varchar, :i_number::integer,
  fence::bigint, :p_since::bigint, :p_expires::bigint,
  encode(sha256(convert_to(
    concat_ws(',', :t_ticket::varchar, :p_since::bigint, :p_expires::bigint, fence),
    'UTF8'
  )), 'hex'),
  :n_version::varchar, :p_record::text,
  to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS.US')
)

-- name: all_news
json_build_array(
  :i_kind::varchar, :i_number::integer, :n_version::varchar, :n_record::text,
  to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS.US')
)

-- In a transaction of the caller's: the mutex row stays as it is until that ends.
-- name: join
SELECT 1 FROM {schema}mutex_locks
WHERE resource_type = $1::varchar AND resource_id = $2::integer AND ticket = $3::varchar
FOR UPDATE

-- Two of these may look at the same time; any other lock on the row excludes them.
-- name: joined
WITH free AS MATERIALIZED (
  SELECT 1 FROM {schema}mutex_locks
  WHERE resource_type = $1::varchar AND resource_id = $2::integer AND ticket = $3::varchar
  FOR KEY SHARE SKIP LOCKED
)
SELECT EXISTS (
  SELECT FROM {schema}mutex_locks
  WHERE resource_type = $1::varchar AND resource_id = $2::integer AND ticket = $3::varchar
) AND NOT EXISTS (SELECT FROM free) AS joined

-- For the connection that listens, which may be idle for long. Before PostgreSQL 14
-- there is no such setting.
-- name: stay
SELECT set_config(name, '0', false) FROM pg_settings
WHERE name = 'idle_session_timeout'

-- For the connection of hints to clients of another store, see `hints.py`: a commit with
-- a notification would wait for the disk.
-- name: hints_are_no_data
SELECT set_config('synchronous_commit', 'off', false)

-- name: hints
SELECT count(pg_notify(channel, payload))
FROM unnest($1::text[], $2::text[]) AS hint (channel, payload)

-- A waiter for a row of the user's, see `RowWaiterPresence`; the two numbers as `freed`
-- in `row_dialects.py` makes them.
-- name: row_waited_for
SELECT a, b, pg_try_advisory_lock_shared(a, b) AS done
FROM (
  SELECT CAST(CAST($1::text AS regclass) AS oid)::int4 AS a,
    hashtext('rwlock ' || $2::text) AS b
) AS numbers

-- name: row_left
SELECT pg_advisory_unlock_shared($1::int4, $2::int4)

-- Keys first, by the primary keys: a join of both tables would read all of them, for
-- each page.
-- name: scan
WITH page AS (
  (
    SELECT resource_type, resource_id FROM {schema}doormans
    WHERE (resource_type, resource_id) > ($1::varchar, $2::integer)
    ORDER BY resource_type, resource_id LIMIT 500
  ) UNION (
    SELECT resource_type, resource_id FROM {schema}mutex_locks
    WHERE (resource_type, resource_id) > ($1::varchar, $2::integer)
    ORDER BY resource_type, resource_id LIMIT 500
  )
  ORDER BY resource_type, resource_id LIMIT 500
)
SELECT resource_type, resource_id,
  to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS.US') AS now,
  NULL AS fence,
  to_char(d.created_at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS.US') AS created,
  d.version, d.record, m.ticket,
  to_char(CASE WHEN m.acquired_at >= '0001-01-01 00:00:00+00' THEN m.acquired_at END
    AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS.US') AS since
FROM page
LEFT JOIN {schema}doormans AS d USING (resource_type, resource_id)
LEFT JOIN {schema}mutex_locks AS m USING (resource_type, resource_id)
ORDER BY resource_type, resource_id

-- Deletes, of $4 doormen after a key, those not used for $1 seconds whose mutex is free,
-- and returns the last key. The primary key leads to them, so that a statement takes no
-- longer where there are more rows. A row that a step has locked is in use and skipped:
-- no step waits, and two purges never wait for each other. A locked row is checked as it
-- is by then.
-- name: forget
WITH portion AS MATERIALIZED (
  SELECT resource_type, resource_id FROM {schema}doormans
  WHERE (resource_type, resource_id) > ($2::varchar, $3::integer)
  ORDER BY resource_type, resource_id
  LIMIT $4::integer
), unused AS MATERIALIZED (
  SELECT resource_type, resource_id
  FROM {schema}doormans AS d JOIN portion USING (resource_type, resource_id)
  WHERE d.updated_at < clock_timestamp() - make_interval(secs => $1::float8)
    AND NOT EXISTS (
      SELECT FROM {schema}mutex_locks AS m
      WHERE m.resource_type = d.resource_type AND m.resource_id = d.resource_id
    )
  FOR UPDATE OF d SKIP LOCKED
), forgotten AS (
  DELETE FROM {schema}doormans AS d USING unused AS u
  WHERE d.resource_type = u.resource_type AND d.resource_id = u.resource_id
)
SELECT resource_type, resource_id FROM portion
ORDER BY resource_type DESC, resource_id DESC LIMIT 1

-- With `quote_all_identifiers` the names of types are quoted, too.
-- name: columns
SELECT table_name, column_name, trim(BOTH '"' FROM data_type) AS data_type
FROM information_schema.columns
WHERE table_schema = COALESCE($1::varchar, current_schema())
  AND table_name IN ('mutex_locks', 'doormans')

-- Which of the tables have no unique key of those two columns that is checked as each
-- row is written. A view has the keys of the tables beneath it.
-- name: keyless
SELECT c.relname AS table_name
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = COALESCE($1::varchar, current_schema())
  AND c.relname IN ('mutex_locks', 'doormans') AND c.relkind IN ('r', 'p')
  AND NOT EXISTS (
    SELECT FROM pg_index AS i
    WHERE i.indrelid = c.oid AND i.indisunique AND i.indisvalid AND i.indimmediate
      AND i.indpred IS NULL AND i.indnkeyatts = 2
      AND ARRAY['resource_id', 'resource_type'] = (
        SELECT array_agg(a.attname::text ORDER BY a.attname)
        FROM pg_attribute AS a
        WHERE a.attrelid = c.oid AND a.attnum = ANY(i.indkey[0:1])
      )
  )

-- Version and settings of the server, and what this role may do.
-- name: server
SELECT current_setting('server_version') AS version,
  current_setting('server_version_num')::integer AS number,
  current_setting('fsync') AS fsync,
  current_setting('synchronous_commit') AS synchronous_commit,
  current_setting('default_transaction_isolation') AS isolation,
  pg_is_in_recovery() AS standby,
  current_setting('transaction_read_only') AS read_only

-- name: schema_locks
CREATE TABLE IF NOT EXISTS {schema}mutex_locks (
  resource_type varchar NOT NULL,
  resource_id integer NOT NULL,
  ticket varchar NOT NULL,
  acquired_at timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (resource_type, resource_id)
)

-- name: schema_doormans
CREATE TABLE IF NOT EXISTS {schema}doormans (
  resource_type varchar NOT NULL,
  resource_id integer NOT NULL,
  active_readers text NOT NULL DEFAULT '{}',
  has_pending_writer boolean NOT NULL DEFAULT false,
  pending_writer varchar,
  updated_at timestamptz NOT NULL DEFAULT now(),
  created_at timestamptz NOT NULL DEFAULT now(),
  version varchar,
  record text,
  PRIMARY KEY (resource_type, resource_id)
) WITH (fillfactor = 50)
