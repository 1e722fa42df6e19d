"""What a failover costs, measured: ``python -m tests.failovers TOPOLOGY …``.

Client processes take, hold and release mutexes while the server that leads is replaced
in three ways: in order ("planned"), after SIGKILL ("killed"), and after SIGKILL a
second after its changes have last reached the other servers ("behind"). ``judge`` reads
the histories of the clients, ``topologies`` has an adapter for each store and setting.
"""
