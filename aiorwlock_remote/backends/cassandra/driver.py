"""cassandra-driver, which ships no types: what we use of it, all in one place."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable
from io import BytesIO
from socket import socket
from typing import TYPE_CHECKING, Any

import cassandra
from cassandra import auth, cluster, connection, policies, protocol, query, segment

# Objects of the driver's. Where one stands in a signature, its name says which.
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
ReadTimeout: type[Exception] = cassandra.ReadTimeout
SyntaxException: type[Exception] = protocol.SyntaxException
Unauthorized: type[Exception] = cassandra.Unauthorized
Unavailable: type[Exception] = cassandra.Unavailable
UnresolvableContactPoints: type[Exception] = cassandra.UnresolvableContactPoints
WriteTimeout: type[Exception] = cassandra.WriteTimeout


if TYPE_CHECKING:

    class Connection:
        """Of ``cassandra.connection``, as far as a subclass of ours needs it."""

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
        def get_request_id(self) -> int:
            """A number that no other request has; under ``lock``."""

        def send_msg(
            self,
            msg: Any,  # noqa: ANN401
            request_id: int,
            cb: Callable[[Any], object],
            *args: Any,  # noqa: ANN401
            **kwargs: Any,  # noqa: ANN401
        ) -> int:
            """Send a request; ``cb`` is told its answer, or its error."""

        def process_io_buffer(self) -> None:
            """Answer those whose answers lie in ``_iobuf``."""

        def defunct(self, exc: BaseException) -> object:
            """Give the connection up, and tell all who wait."""

        def error_all_requests(self, exc: BaseException) -> None:
            """Tell all who wait."""

        def _connect_socket(self) -> None: ...
        def _enable_checksumming(self) -> None: ...
        def _send_options_message(self) -> None: ...

    class SegmentHeader:
        """Of ``cassandra.segment``; never changed once it is made."""

        payload_length: int
        uncompressed_payload_length: int
        is_self_contained: bool

    class SegmentCodec:
        """Of ``cassandra.segment``: without compression, if none is given."""

        @property
        def header_length_with_crc(self) -> int:
            """Bytes of a header and its check sum."""

        def encode(self, buffer: BytesIO, msg: bytes) -> None:
            """Write it in segments."""

        def encode_header(
            self,
            buffer: BytesIO,
            payload_length: int,
            uncompressed_length: int,
            is_self_contained: bool,  # noqa: FBT001
        ) -> None:
            """Write the header of a segment, and its check sum."""

        def decode_header(self, buffer: BytesIO) -> SegmentHeader:
            """Read a header; raises if its check sum is not right."""

else:
    Connection = connection.Connection
    SegmentCodec = segment.SegmentCodec
    SegmentHeader = segment.SegmentHeader


def is_legacy(of: Any) -> bool:  # noqa: ANN401 - a Cluster
    """Whether a cluster object has legacy settings, which exclude profiles."""
    # The driver itself offers no other way to know it.
    modes: Any = getattr(cluster, "_ConfigMode")  # noqa: B009 - private to pyright
    mode: object = getattr(of, "_config_mode")  # noqa: B009
    return bool(mode == modes.LEGACY)
