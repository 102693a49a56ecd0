"""The event loop: fair turns for connections, detection of hang-ups, and a log of what blocks the loop."""
