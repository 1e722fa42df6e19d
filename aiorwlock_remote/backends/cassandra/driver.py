"""Types for what this backend uses of cassandra-driver, which ships none."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable
from io import BytesIO
from socket import socket
from typing import TYPE_CHECKING, Any

import cassandra
from cassandra import auth, cluster, connection, policies, protocol, query

# Objects of the driver. Where one stands in a signature, its name says which.
Session = Any
Statement = Any
Profile = Any
Cluster: Any = cluster.Cluster

ConsistencyLevel: Any = cassandra.ConsistencyLevel
EXEC_PROFILE_DEFAULT: Any = cluster.EXEC_PROFILE_DEFAULT
ExecutionProfile: Any = cluster.ExecutionProfile
DCAwareRoundRobinPolicy: Any = policies.DCAwareRoundRobinPolicy
ExponentialReconnectionPolicy: Any = policies.ExponentialReconnectionPolicy
FallthroughRetryPolicy: Any = policies.FallthroughRetryPolicy
NoSpeculativeExecutionPolicy: Any = policies.NoSpeculativeExecutionPolicy
PlainTextAuthProvider: Any = auth.PlainTextAuthProvider
SimpleStatement: Any = query.SimpleStatement
TokenAwarePolicy: Any = policies.TokenAwarePolicy
dict_factory: Any = getattr(query, "dict_factory")  # noqa: B009 - untyped

AuthenticationFailed: type[Exception] = cassandra.AuthenticationFailed
BadCredentials: type[Exception] = protocol.BadCredentials
ConnectionShutdown: type[Exception] = connection.ConnectionShutdown
ErrorMessage: type[Exception] = protocol.ErrorMessage
InvalidRequest: type[Exception] = cassandra.InvalidRequest
IsBootstrapping: type[Exception] = protocol.IsBootstrappingErrorMessage
NoHostAvailable: type[Exception] = cluster.NoHostAvailable
OperationTimedOut: type[Exception] = cassandra.OperationTimedOut
Overloaded: type[Exception] = protocol.OverloadedErrorMessage
OptionsMessage: Any = protocol.OptionsMessage
ReadTimeout: type[Exception] = cassandra.ReadTimeout
SyntaxException: type[Exception] = protocol.SyntaxException
Unauthorized: type[Exception] = cassandra.Unauthorized
Unavailable: type[Exception] = cassandra.Unavailable
UnresolvableContactPoints: type[Exception] = cassandra.UnresolvableContactPoints
WriteTimeout: type[Exception] = cassandra.WriteTimeout


if TYPE_CHECKING:

    class Connection:
        """Type stub of ``cassandra.connection.Connection``: what our subclass uses."""

        endpoint: object
        ssl_context: ssl.SSLContext | None
        is_closed: bool
        is_defunct: bool
        lock: threading.RLock
        connected_event: threading.Event
        _iobuf: BytesIO
        _requests: dict[int, object]
        _segment_codec: SegmentCodec
        _socket: socket

        def __init__(self, *args: Any, **kwargs: Any) -> None: ...  # noqa: ANN401
        def get_request_id(self) -> int: ...
        def send_msg(
            self,
            msg: Any,  # noqa: ANN401
            request_id: int,
            cb: Callable[[Any], object],
            *args: Any,  # noqa: ANN401
            **kwargs: Any,  # noqa: ANN401
        ) -> int: ...
        def process_io_buffer(self) -> None:
            """Run the callbacks of requests whose answers are whole in ``_iobuf``."""

        def defunct(self, exc: BaseException) -> object:
            """Close a broken connection, and fail all its requests with ``exc``."""

        def error_all_requests(self, exc: BaseException) -> None: ...
        def _connect_socket(self) -> None: ...
        def _enable_checksumming(self) -> None: ...
        def _send_options_message(self) -> None: ...

    class SegmentHeader:
        """Type stub of the immutable ``cassandra.segment.SegmentHeader``."""

    class SegmentCodec:
        """Type stub of ``cassandra.segment.SegmentCodec``, without compression."""

        header_length_with_crc: int

        def encode(self, buffer: BytesIO, msg: bytes) -> None: ...
        def encode_header(self, buffer: BytesIO, *fields: int) -> None: ...
        def decode_header(self, buffer: BytesIO) -> SegmentHeader: ...

else:
    Connection = connection.Connection
    try:
        from cassandra.segment import SegmentCodec, SegmentHeader
    except ImportError:  # the driver's own codec is used then, see `driver_parts.py`
        SegmentCodec = SegmentHeader = object


def is_legacy(session: Session, timeout: float) -> bool:
    """Return True if a session has legacy settings, not profiles. Blocks.

    Raise the driver's error if the session does not answer in ``timeout`` seconds.
    """
    # The driver tells it only by refusing a profile, before it sends anything.
    profile = session.execution_profile_clone_update(
        EXEC_PROFILE_DEFAULT, row_factory=dict_factory
    )
    try:
        session.execute(
            "SELECT key FROM system.local", execution_profile=profile, timeout=timeout
        )
    except ValueError:
        return True
    return False
