"""Training: the loop, its step, optimisers, schedules and what a run reports."""
