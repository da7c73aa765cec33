"""The island: who can be reached over several hops now, found out by link states that hosts pass on."""
