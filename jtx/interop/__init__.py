"""Exchange of weights with other projects: their names and ours, one table a family."""
