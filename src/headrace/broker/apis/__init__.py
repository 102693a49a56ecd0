"""One module per family of APIs, with a `routes()` for the dispatch table."""
