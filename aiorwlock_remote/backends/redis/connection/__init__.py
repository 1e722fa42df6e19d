"""One connection to one Redis server: protocol, transports, reconnection."""
