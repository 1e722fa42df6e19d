"""What PostgreSQL would take and Oracle would not, is not taken by the double."""

from __future__ import annotations

import pytest

from tests.servers.oracle import ddl, plsql, sql
from tests.servers.oracle.errors import OracleError, state_of
from tests.servers.oracle.profiles import PROFILES
from tests.servers.oracle.tokens import IN, IN_OUT, OUT, analysed

OLD, NEW = PROFILES["19c"], PROFILES["23ai"]

STATEMENTS = {
    "SELECT a FROM t LIMIT 1": 933,
    "SELECT a FROM t ORDER BY a LIMIT 1": 933,
    "SELECT a::int FROM t": 911,
    "SELECT a FROM t WHERE a = $1": 911,
    "SELECT a FROM t WHERE a ~ 'b'": 911,
    "SELECT a FROM t AS x": 933,
    "SELECT a FROM t JOIN u AS x ON x.a = t.a": 933,
    "UPDATE t AS x SET a = 1": 933,
    "SELECT 1": 923,
    "SELECT a FROM (SELECT 1 AS a) x": 923,
    "SELECT a FROM t UNION SELECT 1": 923,
    "SELECT TRUE FROM dual": 904,
    "SELECT now() FROM dual": 904,
    "SELECT gen_random_uuid() FROM dual": 904,
    "SELECT string_agg(a, ',') FROM t": 904,
    "SELECT other.f(1) FROM dual": 904,
    "SELECT a FROM t WHERE a ILIKE 'b'": 933,
    "SELECT SYSTIMESTAMP + INTERVAL '1 second' FROM dual": 30089,
    "SELECT a FROM t;": 911,
    "SELECT (a FROM t": 907,
    "SELECT a) FROM t": 923,
    "INSERT INTO t (a) VALUES (1) ON CONFLICT DO NOTHING": 933,
    "DELETE FROM t RETURNING a": 925,
    "SELECT a FROM t WHERE ROWNUM = 1": 3001,
    "SELECT DECODE(a, 1, 2) FROM t": 904,
    "": 900,
    "-- nothing": 900,
}

TABLES = {
    "CREATE TABLE t (a TEXT)": 902,
    "CREATE TABLE t (a BIGINT)": 902,
    "CREATE TABLE t (a VARCHAR2)": 906,
    "CREATE TABLE t (a VARCHAR2(5000))": 910,
    "CREATE TABLE t (a TIMESTAMP(9))": 3001,
    "CREATE TABLE t (a NUMBER);": 911,
    "CREATE PROCEDURE p AS BEGIN NULL; END": 3001,
    "VACUUM": 900,
}

# What cannot be answered the same on both is refused, and so is what is no PL/SQL.
BLOCKS = {
    "BEGIN NULL; END": 6550,
    "BEGIN NULL;": 6550,
    "DECLARE a NUMBER; END;": 6550,
    "BEGIN END IF; NULL; END; END;": 6550,
    "BEGIN COMMIT; NULL; END;": 3001,
    "BEGIN SAVEPOINT a; END;": 3001,
    "BEGIN EXECUTE IMMEDIATE 'x'; END;": 3001,
    "BEGIN FOR r IN (SELECT a FROM t) LOOP NULL; END LOOP; END;": 3001,
    "DECLARE CURSOR c IS SELECT a FROM t; BEGIN NULL; END;": 3001,
    "BEGIN a := pg_sleep(1); END;": 904,
    "BEGIN DBMS_LOCK.SLEEP(1); END;": 904,
    "BEGIN :n := (SELECT a FROM t); END;": 6550,
    "DECLARE a TEXT; BEGIN NULL; END;": 6550,
    "DECLARE a NUMBER BEGIN NULL; END;": 6550,
    "BEGIN UPDATE t SET a = now(); END;": 904,
    "BEGIN UPDATE t SET a = 1 LIMIT 1; END;": 933,
}

GUARDED = "BEGIN BEGIN {body} EXCEPTION WHEN DUP_VAL_ON_INDEX THEN NULL; END; END;"
INSERT = "INSERT INTO t (a) VALUES (1);"
LOCK = "SELECT a INTO v FROM t FOR UPDATE;"
READ = "SELECT a INTO v FROM t;"


def number_of(statement: str) -> int:
    return len(analysed(statement).binds)


@pytest.mark.parametrize(("statement", "code"), STATEMENTS.items())
def test_statements(statement: str, code: int) -> None:
    with pytest.raises(OracleError) as caught:
        analysed(statement)
        sql.translated(statement, (), OLD)
    assert caught.value.number == code


@pytest.mark.parametrize(("statement", "code"), TABLES.items())
def test_tables(statement: str, code: int) -> None:
    with pytest.raises(OracleError) as caught:
        ddl.translated(statement)
    assert caught.value.number == code


@pytest.mark.parametrize(("block", "code"), BLOCKS.items())
def test_blocks(block: str, code: int) -> None:
    binds = analysed(block).binds
    with pytest.raises(OracleError) as caught:
        plsql.translated(block, binds, ("numeric",) * len(binds), OLD)
    assert caught.value.number == code


@pytest.mark.parametrize("body", [INSERT + INSERT, LOCK + INSERT, INSERT + READ])
def test_a_guarded_block_that_postgresql_would_undo(body: str) -> None:
    with pytest.raises(OracleError, match="guarded block"):
        plsql.translated(GUARDED.replace("{body}", body), (), (), OLD)


@pytest.mark.parametrize("body", [INSERT, READ + READ + INSERT, LOCK, "NULL;"])
def test_a_guarded_block_that_is_the_same_on_both(body: str) -> None:
    plsql.translated(GUARDED.replace("{body}", body), (), (), OLD)


def test_changes_of_inner_blocks_count_for_the_outer_one() -> None:
    inner = f"BEGIN {INSERT} EXCEPTION WHEN OTHERS THEN NULL; END; {READ}"
    with pytest.raises(OracleError, match="guarded block"):
        plsql.translated(GUARDED.replace("{body}", inner), (), (), OLD)


def test_newer_releases_take_more() -> None:
    sql.translated("SELECT 1", (), NEW)
    sql.translated("SELECT TRUE", (), NEW)


def test_how_binds_are_used() -> None:
    block = """
    DECLARE v NUMBER := :a;
    BEGIN
      SELECT x, y INTO :b, v FROM t WHERE z = :c;
      INSERT INTO t (x) VALUES (:d) RETURNING x INTO :e;
      :f := :f + :g; :b := 1; IF :h = 1 THEN :h := 2; END IF;
    END;"""
    found = {bind.name: bind.direction for bind in analysed(block).binds}
    assert found == {
        **dict.fromkeys("ACDG", IN),
        **dict.fromkeys("BE", OUT),
        **dict.fromkeys("FH", IN_OUT),
    }


def test_each_bind_of_a_statement_is_one_of_its_own() -> None:
    assert number_of("SELECT :a, :b, ':c' FROM dual WHERE :a = 1 -- :d") == 3
    found = analysed("DELETE FROM t WHERE a = :a RETURNING b INTO :b").binds
    assert [(bind.name, bind.returning) for bind in found] == [
        ("A", False),
        ("B", True),
    ]


def test_a_commit_at_the_end_is_the_server_s() -> None:
    for end in ("COMMIT", "ROLLBACK"):
        block = plsql.translated(f"BEGIN {INSERT} {end}; END;", (), (), OLD)
        assert block.ends == end
        assert end not in block.definition
    assert plsql.translated(f"BEGIN {INSERT} END;", (), (), OLD).ends == ""


def test_texts_and_names_are_left_alone() -> None:
    taken = """SELECT 'LIMIT ''a''::b', q'[it's]', "A" AS "Aa" FROM dual"""
    text = sql.translated(taken, (), OLD).text
    assert text == """SELECT 'LIMIT ''a''::b', 'it''s', "a" AS "Aa" FROM ora.dual"""
    with pytest.raises(OracleError, match="quoted name"):
        sql.translated('SELECT "a" FROM t', (), OLD)


def test_each_number_has_its_state() -> None:
    states = {state_of(number) for number in range(40000)}
    assert len(states) == 40000
    assert all(len(state) == 5 for state in states)
