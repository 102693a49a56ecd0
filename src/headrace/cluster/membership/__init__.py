"""A broker as a member of a cluster that another broker controls: registration, settings, topics it creates."""
