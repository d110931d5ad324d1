"""What the gateway costs: a mock of an engine's server, a load on raw sockets, and proxies to compare with."""
