"""Where the demo's lines come from, and how they reach the topic."""
