"""Check that this broker can join the cluster in a ZooKeeper tree."""

import json
from collections.abc import Mapping

from headrace.cluster import znodes
from headrace.cluster.image import BrokerImage
from headrace.cluster.loading import decoded
from headrace.cluster.store import MetadataStore, NoNodeError
from headrace.errors import ErrorCode, KafkaError

_ACL_ROOTS = ("/kafka-acl", "/kafka-acl-extended/prefixed")
_MIGRATION = "/migration"
_FIRST_REGISTRATION = 5
"""Version of the registration nodes since inter-broker protocol 2.7."""


async def check_cluster(store: MetadataStore, *, broker_id: int, listener: str) -> str:
    """Return the id of the cluster. Its brokers must have the PLAINTEXT listener `listener`.

    Raises StoreError, and KafkaError(unsupported_version) with the reason why this broker cannot join it.
    """
    node = await store.get(znodes.CLUSTER_ID)
    await _refuse_migration(store)
    await _refuse_acls(store)
    for name in await store.children(znodes.BROKER_IDS):
        if int(name) != broker_id:
            await _check_broker(store, int(name), listener)
    return decoded(znodes.CLUSTER_ID, znodes.decode_cluster_id, node.data)


async def _refuse_migration(store: MetadataStore) -> None:
    (controller,) = await store.get_many([znodes.CONTROLLER])
    epoch = -1 if controller is None else decoded(znodes.CONTROLLER, _kraft_epoch, controller.data)
    if epoch >= 0 or await store.exists(_MIGRATION) is not None:
        raise KafkaError(
            ErrorCode.unsupported_version,
            "the cluster is migrating from ZooKeeper to KRaft, and Headrace cannot join a KRaft cluster: finish the "
            "migration without Headrace, or revert it and delete the node /migration",
        )


def _kraft_epoch(data: bytes) -> int:
    return int(json.loads(data).get("kraftControllerEpoch", -1))


async def _refuse_acls(store: MetadataStore) -> None:
    for root in _ACL_ROOTS:
        for kind in await _children(store, root):
            if await _children(store, f"{root}/{kind}"):
                raise KafkaError(
                    ErrorCode.unsupported_version,
                    f"the cluster has ACLs ({root}/{kind}), which Headrace does not enforce: delete them before "
                    "Headrace joins",
                )


async def _children(store: MetadataStore, path: str) -> list[str]:
    try:
        return await store.children(path)
    except NoNodeError:
        return []


async def _check_broker(store: MetadataStore, broker_id: int, listener: str) -> None:
    path = znodes.broker_path(broker_id)
    (node,) = await store.get_many([path])
    if node is None:
        return  # it has just stopped
    version = decoded(path, lambda data: int(json.loads(data)["version"]), node.data)
    if version < _FIRST_REGISTRATION:
        raise KafkaError(
            ErrorCode.unsupported_version,
            f"broker {broker_id} uses an inter-broker protocol older than 2.7: set "
            "inter.broker.protocol.version to 3.4 or newer (at most 3.9) on all brokers first",
        )
    broker: BrokerImage = decoded(path, lambda data: znodes.decode_broker(broker_id, data, -1), node.data)
    endpoint = broker.endpoint(listener)
    known: Mapping[str, str] = {each.listener: each.security_protocol for each in broker.endpoints}
    if endpoint is None:
        raise KafkaError(
            ErrorCode.unsupported_version,
            f"broker {broker_id} has no listener {listener}, only {', '.join(known)}: set "
            "inter.broker.listener.name, and listeners, as on the other brokers",
        )
    if endpoint.security_protocol != "PLAINTEXT":
        raise KafkaError(
            ErrorCode.unsupported_version,
            f"broker {broker_id} uses {endpoint.security_protocol} on its listener {listener}: Headrace supports only "
            "PLAINTEXT between brokers. Set inter.broker.listener.name to a PLAINTEXT listener on all brokers first",
        )
