"""Starting jobs of several processes, here and on clusters."""
