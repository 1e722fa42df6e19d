"""Client of a Redis cluster: slot map, and a connection to each node that is needed."""
