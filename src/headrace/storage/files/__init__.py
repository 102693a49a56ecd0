"""Files as logs need them: atomic replacement, checkpoints, shared descriptors, failures of disks."""
