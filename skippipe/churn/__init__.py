"""Nodes that come and go, simulated: how far a run gets by different policies."""
