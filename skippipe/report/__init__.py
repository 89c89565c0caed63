"""Reports on plans: analysis, tables, plots, HTML page."""
