"""Oracle's errors, and which one stands for what PostgreSQL says."""

from __future__ import annotations

from tests.servers.oracle import pg


class OracleError(Exception):
    """Answered to the client by number and text."""

    def __init__(self, number: int, text: str) -> None:
        super().__init__(number, text)
        self.number = number
        self.text = text

    @property
    def message(self) -> str:
        return f"ORA-{self.number:05}: {self.text}"


def unsupported(what: str) -> OracleError:
    """Nothing is guessed: what the double cannot do as Oracle does is refused."""
    return OracleError(3001, f"unimplemented feature [the double: {what}]")


#: After these the session is over.
LAST_WORDS = frozenset({28, 3113, 12537})

END_OF_FILE = OracleError(3113, "end-of-file on communication channel")
CANCELLED = OracleError(1013, "user requested cancel of current operation")
KILLED = OracleError(28, "your session has been killed")
NO_MORE_ROWS = OracleError(1403, "no data found")

_BY_STATE: dict[str, tuple[int, str]] = {
    "0A000": (3001, "unimplemented feature"),
    "22001": (12899, "value too large for column"),
    "22003": (1438, "value larger than specified precision allowed for this column"),
    "22007": (1843, "not a valid month"),
    "22012": (1476, "divisor is equal to zero"),
    "22P02": (1722, "invalid number"),
    "23502": (1400, "cannot insert NULL"),
    "23503": (2291, "integrity constraint violated - parent key not found"),
    "23514": (2290, "check constraint violated"),
    "25P02": (3001, "the transaction is aborted, which Oracle's never is"),
    "40001": (8177, "can't serialize access for this transaction"),
    "40P01": (60, "deadlock detected while waiting for resource"),
    "42601": (900, "invalid SQL statement"),
    "42701": (957, "duplicate column name"),
    "42703": (904, "invalid identifier"),
    "42710": (955, "name is already used by an existing object"),
    "42804": (932, "inconsistent datatypes"),
    "42883": (904, "invalid identifier"),
    "42P01": (942, "table or view does not exist"),
    "42P07": (955, "name is already used by an existing object"),
    "42P16": (2260, "table can have only one primary key"),
    "3F000": (942, "table or view does not exist"),
    "55P03": (
        54,
        "resource busy and acquire with NOWAIT specified or timeout expired",
    ),
    "57014": (CANCELLED.number, CANCELLED.text),
    "57P01": (END_OF_FILE.number, END_OF_FILE.text),
    "P0002": (1403, "no data found"),
    "P0003": (1422, "exact fetch returns more than requested number of rows"),
}

#: The other way round, for handlers of errors that have a number only.
STATES: dict[int, str] = {
    number: state
    for state, (number, _) in _BY_STATE.items()
    if state not in {"3F000", "42883", "42710", "25P02", "0A000"}
} | {1: "23505"}

# SQLSTATEs of our own, for errors PostgreSQL has no like of: 'O' and the number in
# base 36, which fits what Oracle has.
_DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def state_of(number: int) -> str:
    """The SQLSTATE that carries an Oracle number through PostgreSQL."""
    digits = ""
    for _ in range(4):
        number, digit = divmod(number, 36)
        digits = _DIGITS[digit] + digits
    return "O" + digits


def from_postgresql(error: pg.PostgresError, user: str) -> OracleError:
    """The error Oracle would have raised where PostgreSQL raised this one."""
    state, text, constraint, context = pg.error_fields(error)
    if state.startswith("O") and len(state) == 5:
        return OracleError(int(state[1:], 36), text)
    if state == "23505":
        name = f"{user}.{constraint.upper()}"
        return OracleError(1, f"unique constraint ({name}) violated")
    if state == "22001" and context and "SQL statement" not in context:
        text = "PL/SQL: numeric or value error: character string buffer too small"
        return OracleError(6502, text)
    if state == "55P03" and "lock timeout" in text:
        return OracleError(30006, "resource busy; acquire with WAIT timeout expired")
    if constraint == "leading_precision":
        return OracleError(1873, "the leading precision of the interval is too small")
    number, known = _BY_STATE.get(state, (600, f"SQLSTATE {state}"))
    return OracleError(number, f"{known} [{text}]")
