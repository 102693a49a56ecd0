"""The cluster's metadata: the store port, its implementations, the image built from it, and the controller.

Metadata is a tree of versioned nodes under Kafka's paths (`znodes.py`). `topic_admin.py` changes topics and settings,
one request at a time. A broker's `MetadataCache` keeps an immutable image (`image.py`).
"""
