-- The statements of the Oracle store, by name; {schema} stands for nothing, or for the
-- owner of the tables and a dot.
--
-- Both blocks are anonymous PL/SQL: nothing of ours is stored in the database. They are
-- written to mean the same to a server that, when an exception is handled, undoes the
-- failed statement (Oracle) and to one that undoes the whole inner block (PostgreSQL):
-- in each inner block, the statement that may fail is the only one that changes rows.

-- Both rows of a resource, of one moment: one statement reads both tables.
-- name: look
DECLARE
  v_kind VARCHAR2(2000);
  v_number NUMBER(10);
  v_version VARCHAR2(32);
  v_record VARCHAR2(32767);
  v_created TIMESTAMP(6);
  v_ticket VARCHAR2(2000);
  v_since TIMESTAMP(6);
  v_form VARCHAR2(30) := 'YYYY-MM-DD HH24:MI:SS.FF6';
BEGIN
  v_kind := :i_kind;
  v_number := :i_number;
  SELECT d.version, d.record, d.created_at, m.ticket, m.acquired_at
  INTO v_version, v_record, v_created, v_ticket, v_since
  FROM (SELECT v_kind AS kind, v_number AS num FROM dual) k
  LEFT JOIN {schema}doormans d
    ON d.resource_type = k.kind AND d.resource_id = k.num
  LEFT JOIN {schema}mutex_locks m
    ON m.resource_type = k.kind AND m.resource_id = k.num;
  :o_done := 0;
  :o_fence := NULL;
  :o_now := TO_CHAR(SYS_EXTRACT_UTC(SYSTIMESTAMP), v_form);
  :o_created := TO_CHAR(v_created, v_form);
  :o_version := v_version;
  :o_record := v_record;
  :o_ticket := v_ticket;
  :o_since := TO_CHAR(v_since, v_form);
END;

-- Compare and set. Compared are `i_version` and the mutex row, `i_ticket` and `i_since`
-- (NULL for none), and that it is not later than `i_latest`. `t_` and `n_` are the new
-- values. The doormans row is the lock between programs of this library; the primary key
-- of mutex_locks is the lock between those and others. The mutex row is changed before
-- the doormans row, and a change that comes too late fails in its own statement, so that
-- nothing has ever to be undone. `n_fence` is given if a phase begins: the stored fence is
-- the greater of that and the time, in microseconds since 1970 (2440588 is that day's
-- Julian number). {wait} is how long it waits for a locked doormans row, without it as
-- long as a call takes; `o_done` is 2 if the row was locked for longer.
-- name: swap
DECLARE
  v_kind VARCHAR2(2000);
  v_number NUMBER(10);
  v_version VARCHAR2(32);
  v_record VARCHAR2(32767);
  v_created TIMESTAMP(6);
  v_ticket VARCHAR2(2000);
  v_since TIMESTAMP(6);
  v_now TIMESTAMP(6);
  v_done NUMBER(1) := 0;
  v_fence NUMBER(19);
  t_ticket VARCHAR2(2000);
  t_since TIMESTAMP(6);
  n_record CLOB;
  v_form VARCHAR2(30) := 'YYYY-MM-DD HH24:MI:SS.FF6';
BEGIN
  v_kind := :i_kind;
  v_number := :i_number;
  t_ticket := :t_ticket;
  v_fence := :n_fence;
  n_record := :n_record;
  BEGIN
    SELECT version, record, created_at INTO v_version, v_record, v_created
    FROM {schema}doormans
    WHERE resource_type = v_kind AND resource_id = v_number
    FOR UPDATE{wait};
  EXCEPTION
    WHEN NO_DATA_FOUND THEN
      v_created := SYS_EXTRACT_UTC(SYSTIMESTAMP);
      BEGIN
        INSERT INTO {schema}doormans (
          resource_type, resource_id, active_readers, has_pending_writer,
          updated_at, created_at
        ) VALUES (v_kind, v_number, '{}', 0, v_created, v_created);
      EXCEPTION
        WHEN DUP_VAL_ON_INDEX THEN
          SELECT version, record, created_at INTO v_version, v_record, v_created
          FROM {schema}doormans
          WHERE resource_type = v_kind AND resource_id = v_number
          FOR UPDATE;
      END;
    WHEN OTHERS THEN
      IF SQLCODE NOT IN (-54, -30006) THEN
        RAISE;
      END IF;
      :o_done := 2;
      RETURN;
  END;
  v_now := SYS_EXTRACT_UTC(SYSTIMESTAMP);
  t_since := TO_TIMESTAMP(:t_since, v_form);
  BEGIN
    SELECT ticket, acquired_at INTO v_ticket, v_since
    FROM {schema}mutex_locks
    WHERE resource_type = v_kind AND resource_id = v_number;
  EXCEPTION
    WHEN NO_DATA_FOUND THEN
      v_ticket := NULL;
  END;
  IF v_now <= TO_TIMESTAMP(:i_latest, v_form)
    AND NVL(v_version, '-') = NVL(:i_version, '-')
    AND NVL(v_ticket, '-') = NVL(:i_ticket, '-')
    AND NVL(TO_CHAR(v_since, v_form), '-') = NVL(:i_since, '-')
  THEN
    IF v_ticket IS NULL AND t_ticket IS NULL THEN
      v_done := 1;
    ELSIF v_ticket IS NULL THEN
      BEGIN
        INSERT INTO {schema}mutex_locks (
          resource_type, resource_id, ticket, acquired_at
        ) VALUES (v_kind, v_number, t_ticket, t_since);
        v_done := 1;
      EXCEPTION
        WHEN DUP_VAL_ON_INDEX THEN
          v_done := 0;
      END;
    ELSIF t_ticket IS NULL THEN
      DELETE FROM {schema}mutex_locks
      WHERE resource_type = v_kind AND resource_id = v_number
        AND ticket = v_ticket AND acquired_at = v_since;
      v_done := SQL%ROWCOUNT;
    ELSIF t_ticket = v_ticket AND t_since = v_since THEN
      v_done := 1;
    ELSE
      UPDATE {schema}mutex_locks SET ticket = t_ticket, acquired_at = t_since
      WHERE resource_type = v_kind AND resource_id = v_number
        AND ticket = v_ticket AND acquired_at = v_since;
      v_done := SQL%ROWCOUNT;
    END IF;
  END IF;
  IF v_done = 1 THEN
    IF v_fence IS NOT NULL THEN
      v_fence := GREATEST(
        v_fence,
        (TO_NUMBER(TO_CHAR(v_now, 'J')) - 2440588) * 86400000000
          + TO_NUMBER(TO_CHAR(v_now, 'SSSSS')) * 1000000
          + TO_NUMBER(TO_CHAR(v_now, 'FF6'))
      );
      n_record := TO_CHAR(v_fence) || n_record;
    END IF;
    UPDATE {schema}doormans SET
      active_readers = :n_readers,
      has_pending_writer = :n_waits,
      pending_writer = :n_writer,
      updated_at = v_now,
      version = :n_version,
      record = n_record
    WHERE resource_type = v_kind AND resource_id = v_number;
  ELSE
    BEGIN
      SELECT ticket, acquired_at INTO v_ticket, v_since
      FROM {schema}mutex_locks
      WHERE resource_type = v_kind AND resource_id = v_number;
    EXCEPTION
      WHEN NO_DATA_FOUND THEN
        v_ticket := NULL;
        v_since := NULL;
    END;
    :o_version := v_version;
    :o_record := v_record;
    :o_ticket := v_ticket;
    :o_since := TO_CHAR(v_since, v_form);
  END IF;
  :o_done := v_done;
  :o_fence := TO_CHAR(v_fence);
  :o_now := TO_CHAR(v_now, v_form);
  :o_created := TO_CHAR(v_created, v_form);
  COMMIT;
END;

-- The keys of all resources; `look` reads the rest. In no order: a session compares texts
-- by bytes, but sorts them by its language (NLS_SORT), so there are no pages by key.
-- name: scan
SELECT resource_type, resource_id FROM {schema}doormans
UNION
SELECT resource_type, resource_id FROM {schema}mutex_locks

-- Deletes so many doormen, at most, that were not used for so many seconds and whose
-- mutex is free. Each row that is deleted is checked once more: one that was used in the
-- meantime has changed.
-- name: forget
DELETE FROM {schema}doormans d
WHERE (d.resource_type, d.resource_id) IN (
  SELECT u.resource_type, u.resource_id FROM {schema}doormans u
  WHERE u.updated_at
    < SYS_EXTRACT_UTC(SYSTIMESTAMP) - NUMTODSINTERVAL(:i_seconds, 'SECOND')
  AND NOT EXISTS (
    SELECT 1 FROM {schema}mutex_locks m
    WHERE m.resource_type = u.resource_type AND m.resource_id = u.resource_id
  )
  FETCH FIRST :i_most ROWS ONLY
)
AND d.updated_at
  < SYS_EXTRACT_UTC(SYSTIMESTAMP) - NUMTODSINTERVAL(:i_seconds, 'SECOND')
AND NOT EXISTS (
  SELECT 1 FROM {schema}mutex_locks m
  WHERE m.resource_type = d.resource_type AND m.resource_id = d.resource_id
)

-- Checks the rights and the columns. Reads nothing.
-- name: probe
SELECT d.version, d.record, d.active_readers, d.has_pending_writer, d.pending_writer,
  d.updated_at, d.created_at, m.ticket, m.acquired_at
FROM {schema}doormans d
LEFT JOIN {schema}mutex_locks m
  ON m.resource_type = d.resource_type AND m.resource_id = d.resource_id
WHERE d.resource_type = '%'

-- `i_owner` NULL: our own tables. And how this session compares texts.
-- name: columns
SELECT table_name, column_name, data_type, char_length,
  (SELECT value FROM nls_session_parameters WHERE parameter = 'NLS_COMP') AS compares
FROM all_tab_columns
WHERE owner = NVL(UPPER(:i_owner), USER)
  AND table_name IN ('MUTEX_LOCKS', 'DOORMANS')

-- name: schema_locks
CREATE TABLE {schema}mutex_locks (
  resource_type VARCHAR2(512 CHAR) NOT NULL,
  resource_id NUMBER(10) NOT NULL,
  ticket VARCHAR2(64 CHAR) NOT NULL,
  acquired_at TIMESTAMP(6) DEFAULT SYS_EXTRACT_UTC(SYSTIMESTAMP) NOT NULL,
  PRIMARY KEY (resource_type, resource_id)
)

-- name: schema_doormans
CREATE TABLE {schema}doormans (
  resource_type VARCHAR2(512 CHAR) NOT NULL,
  resource_id NUMBER(10) NOT NULL,
  active_readers VARCHAR2(4000) NOT NULL,
  has_pending_writer NUMBER(1) NOT NULL,
  pending_writer VARCHAR2(400 CHAR),
  updated_at TIMESTAMP(6) NOT NULL,
  created_at TIMESTAMP(6) NOT NULL,
  version VARCHAR2(32),
  record CLOB,
  PRIMARY KEY (resource_type, resource_id)
)
