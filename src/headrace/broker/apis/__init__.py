"""One module per family of APIs; each offers `routes()` to the dispatch table."""
