"""Types for what this backend uses of cassandra-driver, which ships none."""

from __future__ import annotations

import threading
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
ReadTimeout: type[Exception] = cassandra.ReadTimeout
SyntaxException: type[Exception] = protocol.SyntaxException
Unauthorized: type[Exception] = cassandra.Unauthorized
Unavailable: type[Exception] = cassandra.Unavailable
UnresolvableContactPoints: type[Exception] = cassandra.UnresolvableContactPoints
WriteTimeout: type[Exception] = cassandra.WriteTimeout


if TYPE_CHECKING:

    class Connection:
        """Type stub of the driver's connection: what our subclass uses."""

        endpoint: object
        last_error: Exception | None
        connected_event: threading.Event

        def close(self) -> None: ...

else:
    Connection = cluster.DefaultConnection


def is_legacy(session: Session, timeout: float) -> bool:
    """Return True if a session has legacy settings, not profiles. Blocks.

    Raise the driver's error if the session does not answer in ``timeout`` seconds.
    """
    # The driver shows it only by refusing a profile, before it sends anything.
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
