"""etcd store: each resource is two keys, changed by one transaction a step."""
