"""Store in a directory: a record file and a mutex file for each resource."""
