"""Causal and Δ-causal order of deliveries, per group (CAUSAL §IV, §V)."""
