"""Benchmarks on etcd, beside locks of another client and of ZooKeeper."""
