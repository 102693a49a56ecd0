"""The coordinators in this broker: their APIs, the topics that keep their records, and what others left open."""
