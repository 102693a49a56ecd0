"""The broker's coordinators: their APIs, and their internal topics."""
