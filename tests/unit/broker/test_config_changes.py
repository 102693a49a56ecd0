import pytest

from headrace.broker.apis.config_changes import SET, alter_config
from headrace.cluster.image import TOPIC_CONFIG, ConfigResource
from headrace.config import BrokerConfig
from headrace.errors import ErrorCode
from tests.unit.broker.asking import raises_code

T = ConfigResource(TOPIC_CONFIG, "t")
OF_KAFKA_3_9 = {"segment.bytes": "1000", "message.format.version": "3.0"}


def test_settings_of_another_version_of_kafka_stay_when_others_are_changed() -> None:
    changed = alter_config(BrokerConfig(), T, OF_KAFKA_3_9, [("retention.ms", SET, "5")])
    assert changed == {**OF_KAFKA_3_9, "retention.ms": "5"}


@pytest.mark.parametrize("name", OF_KAFKA_3_9)
def test_a_changed_setting_must_be_valid(name: str) -> None:
    with raises_code(ErrorCode.invalid_config):
        alter_config(BrokerConfig(), T, OF_KAFKA_3_9, [(name, SET, "2000")])
