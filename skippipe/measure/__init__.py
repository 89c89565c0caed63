"""Measurements of stages, memory and links, for a cluster file and for training's own calibration."""
