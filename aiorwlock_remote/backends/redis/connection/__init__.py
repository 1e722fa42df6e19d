"""Connection to one Redis server: RESP3 protocol, transports, reconnection."""
