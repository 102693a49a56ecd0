"""Consumer groups in both protocols, and their committed offsets.

`group.py` is their common interface. `classic/` implements the classic protocol and `consumer/` that of KIP-848;
`consumer/classic_members.py`, `consumer/downgrade.py` and `state/migration.py` move a running group between them.
Offsets and KIP-848 groups are stored completely in records. Of a classic group, only its generations are stored, as in
Kafka.
"""
