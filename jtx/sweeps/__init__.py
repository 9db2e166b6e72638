"""Many runs of one config: their items, running them, and the report."""
