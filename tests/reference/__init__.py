"""Slow and obvious counterparts of the scheduler, written from the problem's definition alone."""
