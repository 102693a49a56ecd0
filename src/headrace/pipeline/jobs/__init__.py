"""Jobs that process a web server's requests, and their common expressions."""
