"""cassandra-driver, which ships no types: what we use of it, all in one place."""

from __future__ import annotations

from typing import Any

import cassandra
from cassandra import auth, cluster, connection, policies, protocol, query

# Objects of the driver's. Where one stands in a signature, its name says which.
Session = Any
Statement = Any
Profile = Any
Cluster: Any = cluster.Cluster

Connection: Any = connection.Connection
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


def is_legacy(of: Any) -> bool:  # noqa: ANN401 - a Cluster
    """Whether a cluster object has legacy settings, which exclude profiles."""
    # The driver itself offers no other way to know it.
    modes: Any = getattr(cluster, "_ConfigMode")  # noqa: B009 - private to pyright
    mode: object = getattr(of, "_config_mode")  # noqa: B009
    return bool(mode == modes.LEGACY)
