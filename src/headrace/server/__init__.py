"""Sockets, frames and dispatch: from a client's bytes to a handler and back.

`accept.py` accepts connections. A `Connection` consists of a `Receiver`, which reads into scratch memory shared by all
connections and keeps only incomplete requests, and a `Sender`, which keeps replies until the client takes them.
`request_memory.py` bounds the memory of large incomplete requests. Replies leave in the order of their requests.
While a request waits, or while more than 1 MB of replies is unsent, nothing more is read from its client;
`loop/hang_ups.py` still notices when the client disconnects.

A handler returns a dict with the schema's field names, a superset of all versions, and `wire/encoder.py` writes the
fields of the requested version. `error_replies.py` turns a `KafkaError` into the reply of its API. Any other
exception becomes UNKNOWN_SERVER_ERROR with a traceback in the log. Bytes that cannot be a request close the
connection with one log line.
"""
