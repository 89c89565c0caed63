"""Overrides of settings: values written so that Hydra reads them back."""

from hydra.core.override_parser.types import Quote, QuotedString


def quoted(value: object) -> str:
    """A value as Hydra reads it whatever is in it."""
    return QuotedString(str(value), Quote.single).with_quotes()
