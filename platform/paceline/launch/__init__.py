"""Starting a run on this process or on Ray, and bringing its result back."""
