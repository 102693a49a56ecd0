"""The event loop, shared fairly: whose turn it is, who has hung up, and what held it."""
