"""The demonstration: real nodes on loopback that meet, part and carry messages for each other."""
