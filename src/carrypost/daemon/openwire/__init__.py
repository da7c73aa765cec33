"""OpenWire: programs in Java use a node as a broker of ActiveMQ."""
