"""The metadata of the cluster: the store port, its stores, the image built from it, the controller that changes it."""
