"""Jobs on a web server's requests, and what they share."""
