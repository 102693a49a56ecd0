"""Random frames sent to a complete broker in this process."""
