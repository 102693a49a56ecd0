"""What a log knows of its producers: their snapshot files and their open transactions."""
