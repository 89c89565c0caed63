"""Quoting of values in Hydra overrides."""


def quoted(value: object) -> str:
    """Quote a value for a Hydra override, whatever characters it contains."""
    # A backslash means something only before a quote, or at the end.
    text = str(value)
    out, slashes = "", 0
    for character in text:
        if character == "'":
            out += "\\" * (slashes + 1)
        slashes = slashes + 1 if character == "\\" else 0
        out += character
    return f"'{out}{chr(92) * slashes}'"
