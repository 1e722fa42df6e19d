-- What of Oracle's own the double has, in a schema that stands before PostgreSQL's in
-- the search path: a function or operator found here wins.

CREATE SCHEMA IF NOT EXISTS ora;
GRANT USAGE ON SCHEMA ora TO PUBLIC;
CREATE SCHEMA IF NOT EXISTS ora_blocks;
GRANT USAGE ON SCHEMA ora_blocks TO PUBLIC;
SET search_path = ora, pg_catalog;

CREATE OR REPLACE VIEW dual AS SELECT 'X'::varchar(1) AS dummy;

-- Errors PL/SQL raises, under SQLSTATEs of ours (errors.py).
CREATE OR REPLACE FUNCTION fail(state text, text text) RETURNS void LANGUAGE plpgsql
AS $$ BEGIN RAISE EXCEPTION USING ERRCODE = state, MESSAGE = text; END $$;

-- A text of no length is NULL, and joined to a text NULL is nothing.
CREATE OR REPLACE FUNCTION joined(a text, b text) RETURNS text LANGUAGE sql IMMUTABLE
AS $$ SELECT nullif(concat(a, b), '') $$;

-- CHAR keeps its blanks when it is compared with anything but CHAR.
CREATE OR REPLACE FUNCTION padded(a bpchar) RETURNS text LANGUAGE sql IMMUTABLE STRICT
AS $$ SELECT pg_catalog.concat(a::text, repeat(' ', octet_length(a) - octet_length(a::text))) $$;
CREATE OR REPLACE FUNCTION char_is(a bpchar, b text) RETURNS boolean LANGUAGE sql IMMUTABLE STRICT
AS $$ SELECT texteq(padded(a), b) $$;
CREATE OR REPLACE FUNCTION is_char(a text, b bpchar) RETURNS boolean LANGUAGE sql IMMUTABLE STRICT
AS $$ SELECT texteq(a, padded(b)) $$;
CREATE OR REPLACE FUNCTION char_is_not(a bpchar, b text) RETURNS boolean LANGUAGE sql IMMUTABLE STRICT
AS $$ SELECT textne(padded(a), b) $$;
CREATE OR REPLACE FUNCTION is_not_char(a text, b bpchar) RETURNS boolean LANGUAGE sql IMMUTABLE STRICT
AS $$ SELECT textne(a, padded(b)) $$;

DO $do$
BEGIN
    IF to_regoperator('ora.||(text,text)') IS NULL THEN
        CREATE OPERATOR ora.|| (LEFTARG = text, RIGHTARG = text, FUNCTION = ora.joined);
        CREATE OPERATOR ora.= (LEFTARG = bpchar, RIGHTARG = text, FUNCTION = ora.char_is);
        CREATE OPERATOR ora.= (LEFTARG = text, RIGHTARG = bpchar, FUNCTION = ora.is_char);
        CREATE OPERATOR ora.<> (LEFTARG = bpchar, RIGHTARG = text, FUNCTION = ora.char_is_not);
        CREATE OPERATOR ora.<> (LEFTARG = text, RIGHTARG = bpchar, FUNCTION = ora.is_not_char);
    END IF;
    IF to_regtype('ora.interval_days2') IS NULL THEN
        -- INTERVAL DAY TO SECOND holds two digits of days unless it says otherwise.
        CREATE DOMAIN ora.interval_days2 AS interval
            CONSTRAINT leading_precision CHECK (abs(extract(day FROM VALUE)) < 100);
    END IF;
END
$do$;

-- Texts
CREATE OR REPLACE FUNCTION length(a text) RETURNS numeric LANGUAGE sql IMMUTABLE
AS $$ SELECT nullif(pg_catalog.length(a), 0)::numeric $$;
CREATE OR REPLACE FUNCTION lengthb(a text) RETURNS numeric LANGUAGE sql IMMUTABLE
AS $$ SELECT nullif(octet_length(a), 0)::numeric $$;
CREATE OR REPLACE FUNCTION substr(a text, start numeric, size numeric DEFAULT NULL) RETURNS text
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN a IS NULL OR start IS NULL OR size < 1 THEN NULL
    WHEN start < 0 AND -start > pg_catalog.length(a) THEN NULL
    ELSE nullif(CASE WHEN size IS NULL
        THEN pg_catalog.substr(a, s.at)
        ELSE pg_catalog.substr(a, s.at, size::integer) END, '') END
    FROM (SELECT CASE WHEN start < 0 THEN pg_catalog.length(a) + start::integer + 1
        ELSE pg_catalog.greatest(start::integer, 1) END AS at) AS s
$$;
CREATE OR REPLACE FUNCTION instr(a text, b text, start numeric DEFAULT 1) RETURNS numeric
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN a IS NULL OR b IS NULL THEN NULL
    WHEN strpos(pg_catalog.substr(a, start::integer), b) = 0 THEN 0
    ELSE strpos(pg_catalog.substr(a, start::integer), b) + start - 1 END::numeric
$$;
CREATE OR REPLACE FUNCTION replace(a text, b text, c text DEFAULT NULL) RETURNS text
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN b IS NULL THEN a
    ELSE nullif(pg_catalog.replace(a, b, coalesce(c, '')), '') END
$$;
CREATE OR REPLACE FUNCTION rtrim(a text) RETURNS text LANGUAGE sql IMMUTABLE
AS $$ SELECT nullif(pg_catalog.rtrim(a), '') $$;
CREATE OR REPLACE FUNCTION ltrim(a text) RETURNS text LANGUAGE sql IMMUTABLE
AS $$ SELECT nullif(pg_catalog.ltrim(a), '') $$;
CREATE OR REPLACE FUNCTION lpad(a text, size numeric, fill text DEFAULT ' ') RETURNS text
LANGUAGE sql IMMUTABLE AS $$ SELECT nullif(pg_catalog.lpad(a, size::integer, fill), '') $$;
CREATE OR REPLACE FUNCTION rpad(a text, size numeric, fill text DEFAULT ' ') RETURNS text
LANGUAGE sql IMMUTABLE AS $$ SELECT nullif(pg_catalog.rpad(a, size::integer, fill), '') $$;
CREATE OR REPLACE FUNCTION to_clob(a text) RETURNS text LANGUAGE sql IMMUTABLE
AS $$ SELECT nullif(a, '') $$;
CREATE OR REPLACE FUNCTION dbms_lob_getlength(a text) RETURNS numeric LANGUAGE sql IMMUTABLE
AS $$ SELECT pg_catalog.length(a)::numeric $$;
CREATE OR REPLACE FUNCTION dbms_lob_substr(a text, size numeric DEFAULT 32767, start numeric DEFAULT 1)
RETURNS text LANGUAGE sql IMMUTABLE AS $$ SELECT ora.substr(a, start, size) $$;

-- A text in an expression of a statement has at most 4,000 bytes.
CREATE OR REPLACE FUNCTION expressible(a text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF octet_length(a) > 4000 THEN
        PERFORM ora.fail('O014L', 'can bind a LONG value only for insert into a LONG column');
    END IF;
    RETURN a;
END $$;

-- Conversions
CREATE OR REPLACE FUNCTION to_char(a numeric) RETURNS text LANGUAGE sql IMMUTABLE
AS $$ SELECT CASE WHEN a = trunc(a) THEN trunc(a)::text
    ELSE replace(trim_scale(a)::text, '0.', '.') END $$;
CREATE OR REPLACE FUNCTION to_char(a text) RETURNS text LANGUAGE sql IMMUTABLE
AS $$ SELECT nullif(a, '') $$;
CREATE OR REPLACE FUNCTION to_number(a text) RETURNS numeric LANGUAGE sql IMMUTABLE
AS $$ SELECT nullif(a, '')::numeric $$;
CREATE OR REPLACE FUNCTION to_number(a numeric) RETURNS numeric LANGUAGE sql IMMUTABLE
AS $$ SELECT a $$;
CREATE OR REPLACE FUNCTION to_timestamp(a text, b text) RETURNS timestamp LANGUAGE sql STABLE
AS $$ SELECT (pg_catalog.to_timestamp(a, b)) AT TIME ZONE current_setting('TimeZone') $$;
CREATE OR REPLACE FUNCTION to_date(a text, b text) RETURNS timestamp(0) LANGUAGE sql STABLE
AS $$ SELECT ora.to_timestamp(a, b)::timestamp(0) $$;
CREATE OR REPLACE FUNCTION hextoraw(a text) RETURNS bytea LANGUAGE sql IMMUTABLE
AS $$ SELECT decode(a, 'hex') $$;
CREATE OR REPLACE FUNCTION rawtohex(a bytea) RETURNS text LANGUAGE sql IMMUTABLE
AS $$ SELECT nullif(upper(encode(a, 'hex')), '') $$;
CREATE OR REPLACE FUNCTION sys_guid() RETURNS bytea LANGUAGE sql VOLATILE
AS $$ SELECT uuid_send(gen_random_uuid()) $$;
CREATE OR REPLACE FUNCTION sys_context(space text, name text) RETURNS text LANGUAGE plpgsql STABLE
AS $$
BEGIN
    IF upper(space) = 'USERENV' THEN
        IF upper(name) = 'CURRENT_SCHEMA' THEN RETURN upper(current_schema); END IF;
        IF upper(name) = 'SESSION_USER' THEN RETURN upper(session_user); END IF;
    END IF;
    PERFORM ora.fail('0A000', format('SYS_CONTEXT(%s, %s)', space, name));
END $$;
CREATE OR REPLACE FUNCTION is_json(a text) RETURNS boolean LANGUAGE plpgsql IMMUTABLE STRICT
AS $$ BEGIN PERFORM a::json; RETURN true; EXCEPTION WHEN others THEN RETURN false; END $$;

-- Times
CREATE OR REPLACE FUNCTION sys_extract_utc(a timestamptz) RETURNS timestamp LANGUAGE sql IMMUTABLE
AS $$ SELECT a AT TIME ZONE 'UTC' $$;
CREATE OR REPLACE FUNCTION numtodsinterval(a numeric, unit text) RETURNS interval LANGUAGE plpgsql IMMUTABLE
AS $$
BEGIN
    IF upper(unit) NOT IN ('DAY', 'HOUR', 'MINUTE', 'SECOND') THEN
        PERFORM ora.fail('O01GP', 'illegal argument for function');
    END IF;
    -- In whole microseconds: a float would lose some of them.
    RETURN round(a * CASE upper(unit) WHEN 'DAY' THEN 86400 WHEN 'HOUR' THEN 3600
        WHEN 'MINUTE' THEN 60 ELSE 1 END * 1000000) * interval '1 microsecond';
END $$;

-- Numbers: NULL among them makes the result NULL.
CREATE OR REPLACE FUNCTION the_greatest(VARIADIC a numeric[]) RETURNS numeric LANGUAGE sql IMMUTABLE
AS $$ SELECT CASE WHEN bool_or(v IS NULL) THEN NULL ELSE max(v) END FROM unnest(a) AS v $$;
CREATE OR REPLACE FUNCTION the_least(VARIADIC a numeric[]) RETURNS numeric LANGUAGE sql IMMUTABLE
AS $$ SELECT CASE WHEN bool_or(v IS NULL) THEN NULL ELSE min(v) END FROM unnest(a) AS v $$;

-- The number of an error a handler has caught.
CREATE OR REPLACE FUNCTION code(state text) RETURNS numeric LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    number integer := 0;
    known jsonb := '{"23505": 1, "P0002": 100, "P0003": 1422, "55P03": 54, "40P01": 60,
        "23514": 2290, "23502": 1400, "22001": 12899, "22012": 1476, "57014": 1013}';
BEGIN
    IF state LIKE 'O____' THEN
        FOR i IN 2..5 LOOP
            number := number * 36 + strpos('0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ',
                pg_catalog.substr(state, i, 1)) - 1;
        END LOOP;
        RETURN -number;
    END IF;
    IF state = 'P0002' THEN RETURN 100; END IF;
    RETURN -coalesce((known ->> state)::integer, 600);
END $$;

-- The dictionary, of which a user sees what any right lets it see.
CREATE OR REPLACE VIEW all_tab_columns AS
SELECT upper(n.nspname)::varchar AS owner, upper(c.relname)::varchar AS table_name,
    upper(a.attname)::varchar AS column_name,
    CASE t.typname WHEN 'varchar' THEN 'VARCHAR2' WHEN 'bpchar' THEN 'CHAR'
        WHEN 'text' THEN 'CLOB' WHEN 'numeric' THEN 'NUMBER' WHEN 'bytea' THEN 'RAW'
        WHEN 'bool' THEN 'BOOLEAN' WHEN 'float8' THEN 'BINARY_DOUBLE'
        WHEN 'timestamp' THEN CASE a.atttypmod WHEN 0 THEN 'DATE'
            ELSE 'TIMESTAMP(' || CASE a.atttypmod WHEN -1 THEN 6 ELSE a.atttypmod END || ')' END
        WHEN 'timestamptz' THEN 'TIMESTAMP(6) WITH TIME ZONE'
        ELSE upper(t.typname) END::varchar AS data_type,
    CASE WHEN t.typname IN ('varchar', 'bpchar') THEN a.atttypmod - 4 ELSE 0 END::numeric
        AS char_length,
    CASE WHEN t.typname IN ('varchar', 'bpchar') THEN a.atttypmod - 4 ELSE 22 END::numeric
        AS data_length,
    CASE WHEN t.typname = 'numeric' AND a.atttypmod >= 0
        THEN (a.atttypmod - 4) >> 16 END::numeric AS data_precision,
    CASE WHEN t.typname = 'numeric' AND a.atttypmod >= 0
        THEN (a.atttypmod - 4) & 65535 END::numeric AS data_scale,
    CASE WHEN a.attnotnull THEN 'N' ELSE 'Y' END::varchar AS nullable,
    a.attnum::numeric AS column_id
FROM pg_attribute AS a
JOIN pg_class AS c ON c.oid = a.attrelid
JOIN pg_namespace AS n ON n.oid = c.relnamespace
JOIN pg_type AS t ON t.oid = a.atttypid
WHERE c.relkind IN ('r', 'v') AND a.attnum > 0 AND NOT a.attisdropped
    AND n.nspname !~ '^(pg_|ora$|ora_blocks$|information_schema$|public$)'
    AND has_table_privilege(c.oid, 'SELECT, INSERT, UPDATE, DELETE');
CREATE OR REPLACE VIEW user_tab_columns AS
SELECT * FROM all_tab_columns WHERE owner = upper(current_user);
CREATE OR REPLACE VIEW all_tables AS
SELECT DISTINCT owner, table_name FROM all_tab_columns;
CREATE OR REPLACE VIEW user_tables AS
SELECT table_name FROM all_tables WHERE owner = upper(current_user);
CREATE OR REPLACE VIEW all_cons_columns AS
SELECT upper(n.nspname)::varchar AS owner, upper(k.conname)::varchar AS constraint_name,
    upper(c.relname)::varchar AS table_name, upper(a.attname)::varchar AS column_name,
    array_position(k.conkey, a.attnum)::numeric AS position
FROM pg_constraint AS k
JOIN pg_class AS c ON c.oid = k.conrelid
JOIN pg_namespace AS n ON n.oid = c.relnamespace
JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum = ANY (k.conkey)
WHERE has_table_privilege(c.oid, 'SELECT, INSERT, UPDATE, DELETE');
CREATE OR REPLACE VIEW user_cons_columns AS
SELECT * FROM all_cons_columns WHERE owner = upper(current_user);
CREATE OR REPLACE VIEW all_constraints AS
SELECT upper(n.nspname)::varchar AS owner, upper(k.conname)::varchar AS constraint_name,
    upper(k.contype::text)::varchar AS constraint_type, upper(c.relname)::varchar AS table_name,
    'ENABLED'::varchar AS status
FROM pg_constraint AS k
JOIN pg_class AS c ON c.oid = k.conrelid
JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE has_table_privilege(c.oid, 'SELECT, INSERT, UPDATE, DELETE');
CREATE OR REPLACE VIEW user_constraints AS
SELECT * FROM all_constraints WHERE owner = upper(current_user);
CREATE OR REPLACE VIEW nls_session_parameters AS
SELECT 'NLS_COMP'::varchar AS parameter,
    coalesce(nullif(current_setting('ora.nls_comp', true), ''), 'BINARY')::varchar AS value;
CREATE OR REPLACE VIEW product_component_version AS
SELECT 'Oracle Database'::varchar AS product, current_setting('ora.release')::varchar AS version,
    current_setting('ora.release')::varchar AS version_full, 'a test double'::varchar AS status;
GRANT SELECT ON ALL TABLES IN SCHEMA ora TO PUBLIC;

-- What a column holds when its type is changed.
CREATE OR REPLACE FUNCTION kept(a bpchar) RETURNS text LANGUAGE sql IMMUTABLE STRICT
AS $$ SELECT ora.padded(a) $$;
CREATE OR REPLACE FUNCTION kept(a anyelement) RETURNS anyelement LANGUAGE sql IMMUTABLE STRICT
AS $$ SELECT a $$;
