"""Hydra configuration: what `skippipe COMMAND` composes its settings from."""
