"""The opportunistic network layer: announce, offer, request, transfer (JOMS-12 §III.A, JOMS-15 §2.2)."""
