"""Groups that one of the client libraries cannot describe."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException

from headrace.cli import group_descriptions
from headrace.cli.cluster import Cluster
from headrace.cli.failures import CommandError, NoReplyError
from headrace.cli.group_descriptions import Coordinator, Description, Member, describe


def cluster(errors: dict[str, int]) -> Cluster:
    """A cluster whose groups confluent-kafka cannot describe."""

    def describe_consumer_groups(names: Sequence[str], **_: object) -> dict[str, Future[Any]]:
        assert not any("\0" in name for name in names)
        futures: dict[str, Future[Any]] = {name: Future() for name in names}
        for name, future in futures.items():
            future.set_exception(KafkaException(KafkaError(errors[name])))
        return futures

    admin = SimpleNamespace(describe_consumer_groups=describe_consumer_groups)
    return cast(Cluster, SimpleNamespace(admin=admin, bootstrap="b:1"))


class Admin:
    """Answers like kafka-python's admin client; broker 2 coordinates the groups."""

    def __init__(self, groups: Sequence[Any]) -> None:
        self._describe_groups_process_response: Callable[[Any], Any]
        self._groups = {group.group_id: group for group in groups}

    def describe_cluster(self) -> dict[str, Any]:
        return {"brokers": [{"broker_id": number, "host": "h", "port": number} for number in (1, 2)]}

    def list_groups(self, broker_ids: list[int]) -> list[dict[str, str]]:
        return [{"group_id": name} for name in self._groups] if broker_ids == [2] else []

    def describe_groups(self, names: list[str], coordinator: int) -> Any:
        assert coordinator == 2
        answer = SimpleNamespace(groups=[self._groups[name] for name in names])
        return self._describe_groups_process_response(answer)


def of(name: str, protocol_type: str, assignment: bytes, *, state: str = "Stable", error: int = 0) -> Any:
    member = SimpleNamespace(
        member_id="m", client_id="c", client_host="/h", group_instance_id=None, member_assignment=assignment
    )
    return SimpleNamespace(
        group_id=name,
        error_code=error,
        group_state=state,
        protocol_type=protocol_type,
        protocol_data="p",
        members=[member],
    )


ASSIGNED = b"\0\0" + b"\0\0\0\1" + b"\0\1t" + b"\0\0\0\1" + b"\0\0\0\7" + b"\xff\xff\xff\xff"


def test_groups_that_confluent_kafka_cannot_describe(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = [
        of("workers", "connect", ASSIGNED),
        of("consumers", "consumer", ASSIGNED),
        of("custom", "consumer", b"\0\1zzz"),
        of("not text", "consumer", ASSIGNED.replace(b"t", b"\xff")),
        of("a\0b", "consumer", ASSIGNED),
        of("gone", "connect", b"", state="Dead"),
        of("secret", "connect", b"", error=30),
    ]

    monkeypatch.setattr(group_descriptions, "python_admin", lambda *_: nullcontext(Admin(groups)))
    names = [group.group_id for group in groups]
    found = describe(cluster(dict.fromkeys([*names, "expired"], KafkaError._INVALID_ARG)), [*names, "expired"])

    secret = found.pop("secret")
    assert isinstance(secret, CommandError)
    assert secret.what.startswith("describing group 'secret': ")
    places: dict[str, tuple[Any, ...]] = {
        "workers": (),
        "consumers": (("t", 7),),
        "a\0b": (("t", 7),),
        "custom": (),
        "not text": (),
    }
    assert found == {
        name: Description("p", Coordinator(2, "h", 2), [Member("m", "c", "/h", None, owned)])
        for name, owned in places.items()
    }


def test_the_error_of_a_broker_stands_for_one_group() -> None:
    found = describe(cluster({"": KafkaError.INVALID_GROUP_ID, "gone": KafkaError.GROUP_ID_NOT_FOUND}), ["", "gone"])
    assert list(found) == [""]
    assert isinstance(found[""], CommandError)


def test_a_lost_cluster_is_no_error_of_a_group() -> None:
    with pytest.raises(NoReplyError, match="describing group 'g': no reply from b:1"):
        describe(cluster({"g": KafkaError._TIMED_OUT}), ["g"])
