"""The island: the hosts that can be reached over several hops now, found by link states that hosts forward."""
