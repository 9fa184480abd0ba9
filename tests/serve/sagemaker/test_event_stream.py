"""Frames, read by botocore."""

import pytest
from botocore.eventstream import EventStreamBuffer
from hypothesis import given, settings
from hypothesis import strategies as st

from peagle.serve.sagemaker.event_stream import exception, frame, payload_part

NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=40)


@settings(deadline=None, max_examples=60)
@given(
    st.dictionaries(NAMES, st.text(st.characters(codec="utf-8"), max_size=200), max_size=5),
    st.binary(max_size=3000),
)
def test_frames_are_read_back(headers: dict[str, str], payload: bytes) -> None:
    buffer = EventStreamBuffer()
    written = frame(headers, payload)
    buffer.add_data(written + written[:5])
    message = next(buffer)
    assert message.headers == headers
    assert message.payload == payload
    with pytest.raises(StopIteration):
        next(buffer)


def test_parts_and_exceptions_are_told_apart() -> None:
    buffer = EventStreamBuffer()
    buffer.add_data(payload_part(b"data:{}\n\n") + exception("ModelStreamError", {"Message": "x"}))
    part, failure = list(buffer)
    assert part.to_response_dict()["status_code"] == 200
    assert part.headers[":event-type"] == "PayloadPart"
    assert part.payload == b"data:{}\n\n"
    assert failure.to_response_dict()["status_code"] == 400
    assert failure.headers[":exception-type"] == "ModelStreamError"
    assert failure.payload == b'{"Message": "x"}'


def test_the_bytes_are_those_of_the_specification() -> None:
    """The empty message among the vectors of aws-c-event-stream."""
    assert frame({}, b"").hex() == "000000100000000005c248eb7d98c8ff"
