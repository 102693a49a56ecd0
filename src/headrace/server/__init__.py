"""Sockets, frames and dispatch: from a client's bytes to a handler and back.

`accept.py` accepts connections. A `Connection` consists of a `Receiver`, which reads into scratch memory shared by all
connections and keeps only incomplete requests, and a `Sender`, which keeps replies until the client takes them.
`request_memory.py` bounds the memory of large incomplete requests. Replies are sent in the order of their requests.
While a client does not read its replies, nothing more is read from it. While its request waits, no other is handled,
except that further Produce requests follow a Produce request that waits for followers (`runs.py`).
`loop/hang_ups.py` still notices when the client disconnects.

A handler returns a dict with the fields of all versions, named as in the schema, and `wire/encoder.py` writes those of
the requested version. `error_replies.py` turns a `KafkaError` into the reply of its API. Any other
exception becomes UNKNOWN_SERVER_ERROR with a traceback in the log. Bytes that cannot be a request close the
connection with one log line.
"""
