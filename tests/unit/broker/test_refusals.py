import pytest

from headrace.broker.refusals import MAX_LINES, RefusalLog
from headrace.errors import ErrorCode, KafkaError
from headrace.server.context import RequestContext
from tests.unit.broker.asking import client_at


def test_the_log_of_refused_batches_is_rate_limited(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    refusals = RefusalLog(lambda: now[0])
    context = RequestContext(0, 9, 1, "me", client_at())
    for index in range(10 * MAX_LINES):
        refusals.refused(f"t-{index}", context, KafkaError(ErrorCode.corrupt_message, "it is damaged"))
    assert len(caplog.messages) == MAX_LINES
    assert caplog.messages[0] == "Produce to t-0 from client id me (192.0.2.9) refused: it is damaged"

    now[0] = 1.0
    for index in (1, 2):
        refusals.refused(f"t-{index}", context, KafkaError(ErrorCode.corrupt_message, "it is damaged"))
    assert caplog.messages[-2].endswith(f"it is damaged ({9 * MAX_LINES} more refused since the last line)")
    assert caplog.messages[-1].endswith("it is damaged")
