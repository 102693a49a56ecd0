import pytest

from headrace.cli.http_side import _address


@pytest.mark.parametrize(
    ("listener", "broker_host", "expected"),
    [
        (None, "10.0.0.1", None),
        ("", "10.0.0.1", None),
        ("127.0.0.1:9404", "127.0.0.1", "127.0.0.1:9404"),
        ("9404", "localhost", "127.0.0.1:9404"),
        ("127.0.0.1:0", "127.0.0.1", None),
        ("0.0.0.0:9404", "kafka-1.example", "kafka-1.example:9404"),
        ("[::]:9404", "fe80::1", "[fe80::1]:9404"),
        ("127.0.0.1:9404", "kafka-1.example", None),
        ("10.0.0.9:9404", "kafka-1.example", "10.0.0.9:9404"),
    ],
)
def test_the_address_is_reachable_from_the_client(listener: str | None, broker_host: str, expected: str | None) -> None:
    assert _address(listener, broker_host) == expected
