"""Pipeline-parallel training in which microbatches skip stages: clusters, plans, simulation and the command line."""

from importlib.metadata import version

__version__ = version("skippipe")
