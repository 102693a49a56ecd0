"""Consumer groups in both protocols, and their committed offsets.

`group.py` is the interface of both kinds. `classic/` is the classic protocol and `consumer/` that of KIP-848;
`consumer/classic_members.py`, `consumer/downgrade.py` and `state/migration.py` move a running group between them.
Offsets and KIP-848 groups exist completely in records. Of a classic group the log has its generations, as in Kafka,
while waiting members live in memory.
"""
