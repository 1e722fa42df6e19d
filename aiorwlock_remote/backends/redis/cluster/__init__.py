"""A Redis cluster: the slot map, and a connection to each node that is needed."""
