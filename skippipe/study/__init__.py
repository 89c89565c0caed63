"""Studies: many trainings on free devices, compared in a table."""
