"""Consumer groups in both protocols, and their committed offsets."""
