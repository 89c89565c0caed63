"""All that is printed: standard streams, lines and tables, progress."""
