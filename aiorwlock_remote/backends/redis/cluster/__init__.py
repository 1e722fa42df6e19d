"""A Redis cluster: which node has what, and one link to each."""
