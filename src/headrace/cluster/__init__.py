"""The metadata of the cluster: the store port, its stores, the image built from it, and the controller that changes it.

Metadata is a tree of versioned nodes under Kafka's paths (`znodes.py`). Requests that change topics and settings go
through `topic_admin.py` one at a time. A broker's `MetadataCache` holds an immutable `image.py`, which changes only
through UpdateMetadata.
"""
