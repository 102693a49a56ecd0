"""Storage on a disk that loses what was not synced: thousands of crashes, and what a start makes of them."""
