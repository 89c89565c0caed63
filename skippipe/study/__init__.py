"""Studies: many trainings that are held against each other, run as devices are free, with a table of what is done."""
