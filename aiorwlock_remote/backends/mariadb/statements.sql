-- The statements of MariaDB and MySQL, by name. {schema} stands for nothing, or for the
-- database of the tables and a dot, {collation} for its name; the other names for
-- values, as `statements.py` writes them: texts as X'…', so that no mode of the server
-- changes what they mean.
--
-- A step is one request: one statement, or a few between START TRANSACTION and COMMIT.
-- The doormans row is changed first: it is the lock between programs of this library;
-- the primary key of mutex_locks is the lock between those and others. Each statement
-- after that fails unless the one before has changed its row ({changed}), and a failure
-- leaves the rest undone: both rows are changed, or neither is.
--
-- LAST_INSERT_ID(x) is x, and comes with the answer: the server's time, without a
-- statement that asks for it. UTC_TIMESTAMP is the time when the statement began,
-- whatever time zone a session has.

-- name: now
TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))

-- name: in_time
LAST_INSERT_ID({now}) > 0 AND UTC_TIMESTAMP(6) <= {i_latest}

-- name: change
UPDATE {schema}doormans
SET active_readers = {n_readers}, has_pending_writer = {n_waits},
  pending_writer = {n_writer}, updated_at = UTC_TIMESTAMP(6),
  version = {n_version}, record = {record}
WHERE resource_type = {kind} AND resource_id = {number} AND version = {i_version}
  AND {in_time} AND {seat}

-- Before a change whose wait for the row has a limit of its own, where only reads can.
-- name: lock
SELECT 1 FROM {schema}doormans
WHERE resource_type = {kind} AND resource_id = {number} FOR UPDATE

-- name: make
INSERT INTO {schema}doormans (
  resource_type, resource_id, active_readers, has_pending_writer, pending_writer,
  updated_at, created_at, version, record
)
SELECT {kind}, {number}, {n_readers}, {n_waits}, {n_writer},
  UTC_TIMESTAMP(6), UTC_TIMESTAMP(6), {n_version}, {record}
FROM DUAL WHERE {in_time} AND {seat}

-- A row without our columns' values counts as none.
-- name: adopt
UPDATE {schema}doormans
SET active_readers = {n_readers}, has_pending_writer = {n_waits},
  pending_writer = {n_writer}, updated_at = UTC_TIMESTAMP(6),
  version = {n_version}, record = {record}
WHERE resource_type = {kind} AND resource_id = {number} AND version IS NULL
  AND {in_time} AND {seat}

-- What is stored if a phase begins: its fence is the greater of the given one and the
-- time of the statement, which comes with the answer.
-- name: begins
CONCAT(GREATEST({n_fence}, {now}), {n_record})

-- name: free
NOT EXISTS (
  SELECT 1 FROM {schema}mutex_locks
  WHERE resource_type = {kind} AND resource_id = {number}
)

-- name: taken
EXISTS (
  SELECT 1 FROM {schema}mutex_locks
  WHERE resource_type = {kind} AND resource_id = {number}
    AND ticket = {i_ticket} AND acquired_at = {i_since}
)

-- True if the statement before has changed one row; else out of range, which is an error
-- in each SQL mode. A condition that is merely false would not do: if the client's
-- connection has ended, the server goes on with the statements, and ROW_COUNT() is -1
-- whatever the statement before has changed: the step would change one row of the two
-- (test_a_connection_that_ends_in_the_middle_of_a_step). A look at the row in place of
-- ROW_COUNT() costs a third of a step.
-- name: changed
(~0 + (ROW_COUNT() <> 1))

-- Fails if there is a mutex row.
-- name: sit
INSERT INTO {schema}mutex_locks (resource_type, resource_id, ticket, acquired_at)
VALUES ({kind}, {number}, IF({changed}, {t_ticket}, NULL), {t_since})

-- name: move
UPDATE {schema}mutex_locks SET ticket = {t_ticket}, acquired_at = {t_since}
WHERE {changed} AND resource_type = {kind} AND resource_id = {number}
  AND ticket = {i_ticket} AND acquired_at = {i_since}

-- name: leave
DELETE FROM {schema}mutex_locks
WHERE {changed} AND resource_type = {kind} AND resource_id = {number}
  AND ticket = {i_ticket} AND acquired_at = {i_since}

-- Both tables at one moment.
-- name: look
SELECT {now}, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', d.created_at),
  d.version, CAST(d.record AS BINARY), CAST(m.ticket AS BINARY),
  TIMESTAMPDIFF(MICROSECOND, '1970-01-01', m.acquired_at)
FROM (SELECT 1) AS k
LEFT JOIN {schema}doormans AS d
  ON d.resource_type = {kind} AND d.resource_id = {number}
LEFT JOIN {schema}mutex_locks AS m
  ON m.resource_type = {kind} AND m.resource_id = {number}

-- In a transaction of the caller's: the mutex row stays as it is until that ends. The
-- lock is shared, because our own renewals may read the row meanwhile.
-- name: join
SELECT 1 FROM {schema}mutex_locks
WHERE resource_type = {kind} AND resource_id = {number} AND ticket = {ticket}
LOCK IN SHARE MODE

-- Does not lock: a transaction sees what its first read saw, unless it locks.
-- name: seen
SELECT 1 FROM {schema}mutex_locks
WHERE resource_type = {kind} AND resource_id = {number} AND ticket = {ticket}

-- No row if a step of ours, or another look, has locked the doormans row: it may have
-- locked the mutex row, too. Else whether the mutex row is not locked.
-- name: free_to_change
SELECT m.ticket IS NOT NULL
FROM {schema}doormans AS d
LEFT JOIN {schema}mutex_locks AS m
  ON m.resource_type = {kind} AND m.resource_id = {number} AND m.ticket = {ticket}
WHERE d.resource_type = {kind} AND d.resource_id = {number}
FOR UPDATE SKIP LOCKED

-- name: scan
SELECT CAST(k.resource_type AS BINARY), k.resource_id,
  {now}, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', d.created_at),
  d.version, CAST(d.record AS BINARY), CAST(m.ticket AS BINARY),
  TIMESTAMPDIFF(MICROSECOND, '1970-01-01', m.acquired_at)
FROM (
  (
    SELECT resource_type, resource_id FROM {schema}doormans
    WHERE resource_type > {kind}
      OR (resource_type = {kind} AND resource_id > {number})
    ORDER BY resource_type, resource_id LIMIT 500
  ) UNION (
    SELECT resource_type, resource_id FROM {schema}mutex_locks
    WHERE resource_type > {kind}
      OR (resource_type = {kind} AND resource_id > {number})
    ORDER BY resource_type, resource_id LIMIT 500
  )
  ORDER BY resource_type, resource_id LIMIT 500
) AS k
LEFT JOIN {schema}doormans AS d USING (resource_type, resource_id)
LEFT JOIN {schema}mutex_locks AS m USING (resource_type, resource_id)
ORDER BY k.resource_type, k.resource_id

-- The last of so many doormen after a key. A plain read locks nothing.
-- name: portion
SELECT CAST(resource_type AS BINARY), resource_id FROM (
  SELECT resource_type, resource_id FROM {schema}doormans
  WHERE resource_type > {kind}
    OR (resource_type = {kind} AND resource_id > {number})
  ORDER BY resource_type, resource_id LIMIT {most}
) AS k
ORDER BY k.resource_type DESC, k.resource_id DESC LIMIT 1

-- Deletes, of the doormen between two keys, those not used for so many seconds whose
-- mutex is free. The keys bound what is read and, whatever the isolation, what is locked.
-- They are compared as MySQL understands, too: it would read all of a type. For NOT EXISTS
-- it would read all of mutex_locks.
-- name: forget
DELETE FROM {schema}doormans
WHERE (resource_type > {kind} OR (resource_type = {kind} AND resource_id > {number}))
  AND (
    resource_type < {last_kind}
    OR (resource_type = {last_kind} AND resource_id <= {last_number})
  )
  AND updated_at < UTC_TIMESTAMP(6) - INTERVAL {seconds} SECOND
  AND 0 = (
    SELECT count(*) FROM {schema}mutex_locks AS m
    WHERE m.resource_type = doormans.resource_type
      AND m.resource_id = doormans.resource_id
  )

-- name: server
SHOW VARIABLES WHERE variable_name IN (
  'version', 'tx_isolation', 'transaction_isolation', 'sql_mode', 'sql_select_limit',
  'read_only', 'innodb_flush_log_at_trx_commit', 'log_bin', 'binlog_format',
  'sync_binlog', 'wsrep_on',
  'group_replication_group_name', 'group_replication_single_primary_mode'
)

-- What a new session begins with.
-- name: default_autocommit
SELECT @@GLOBAL.autocommit

-- name: owner
SELECT DATABASE()

-- name: columns
SELECT c.table_name, t.engine, c.column_name, c.data_type, c.collation_name,
  c.datetime_precision
FROM information_schema.columns AS c
JOIN information_schema.tables AS t USING (table_schema, table_name)
WHERE c.table_schema = {owner} AND c.table_name IN ('mutex_locks', 'doormans')

-- Of unique indexes: their columns, and how much of them.
-- name: keys
SELECT table_name, index_name, column_name, sub_part
FROM information_schema.statistics
WHERE table_schema = {owner} AND table_name IN ('mutex_locks', 'doormans')
  AND non_unique = 0

-- The collation drops no trailing space and folds no case: different names differ.
-- name: schema_locks
CREATE TABLE IF NOT EXISTS {schema}mutex_locks (
  resource_type varchar(512) NOT NULL,
  resource_id int NOT NULL,
  ticket varchar(512) NOT NULL,
  acquired_at datetime(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
  PRIMARY KEY (resource_type, resource_id)
) ENGINE = InnoDB CHARACTER SET utf8mb4 COLLATE {collation}

-- name: schema_doormans
CREATE TABLE IF NOT EXISTS {schema}doormans (
  resource_type varchar(512) NOT NULL,
  resource_id int NOT NULL,
  active_readers text NOT NULL,
  has_pending_writer boolean NOT NULL DEFAULT FALSE,
  pending_writer varchar(512),
  updated_at datetime(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
  created_at datetime(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
  version varchar(32),
  record mediumtext,
  PRIMARY KEY (resource_type, resource_id)
) ENGINE = InnoDB CHARACTER SET utf8mb4 COLLATE {collation}
