"""Crash storage on a disk that loses unsynced data, and check what it recovers."""
