"""Modulators: functions of consumers that brokers run on events, registered classes and WebAssembly modules."""
