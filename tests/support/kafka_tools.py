"""Kafka's command-line tools in one JVM: after the first, a tool takes a tenth of a second."""

import re
import threading
from functools import cache
from typing import Any, Final, NamedTuple
from unittest.mock import patch

import py4j.protocol
from py4j.protocol import Py4JJavaError

from tests.support.java_gateway import JavaGateway, shared_gateway

CONFIGS: Final = "kafka.admin.ConfigCommand"
CONSOLE_CONSUMER: Final = "org.apache.kafka.tools.consumer.ConsoleConsumer"
CONSOLE_PRODUCER: Final = "org.apache.kafka.tools.ConsoleProducer"
CONSUMER_GROUPS: Final = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
DUMP_LOG: Final = "org.apache.kafka.tools.DumpLogSegments"
ELECT: Final = "org.apache.kafka.tools.LeaderElectionCommand"
GET_OFFSETS: Final = "org.apache.kafka.tools.GetOffsetShell"
LOG_DIRS: Final = "org.apache.kafka.tools.LogDirsCommand"
REASSIGN: Final = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
TOPICS: Final = "org.apache.kafka.tools.TopicCommand"

_EXIT: Final = "java.lang.IndexOutOfBoundsException"
"""Thrown by tools instead of exiting: the only exceptions that can be made of a number are the likes of this one."""
_TRACE: Final = re.compile(r"^(.*Index out of range: \d+|\tat .*|SLF4J: .*)\n*", re.MULTILINE)


class Output(NamedTuple):
    status: int
    printed: str
    errors: str


class KafkaTools:
    """Runs the main methods of tools in a JVM, whose output it captures."""

    def __init__(self, java: JavaGateway) -> None:
        self._lock = threading.Lock()
        self._java = java
        jvm = java.jvm
        self._printed = jvm.java.io.ByteArrayOutputStream()
        self._errors = jvm.java.io.ByteArrayOutputStream()
        # Scala's println keeps the stream that it finds first.
        jvm.java.lang.System.setOut(jvm.java.io.PrintStream(self._printed, True))
        jvm.java.lang.System.setErr(jvm.java.io.PrintStream(self._errors, True))
        # Without a configuration, the first line ever logged prints warnings, which would be the first tool's errors.
        jvm.org.slf4j.LoggerFactory.getLogger("tests").warn("")
        self._exits = jvm.java.io.ByteArrayOutputStream()
        self._throw_instead_of_exiting()

    def run(self, tool: str, *arguments: str) -> Output:
        """Run the tool of this class with these arguments. Java's stack traces are left out."""
        with self._lock:
            return self._run(tool, *arguments)

    def _run(self, tool: str, *arguments: str) -> Output:
        self._printed.reset()
        self._errors.reset()
        self._exits.reset()
        jvm = self._java.jvm
        texts = self._java.array(jvm.java.lang.String, arguments)
        main = jvm.java.lang.Class.forName(tool).getMethod("main", self._classes(texts.getClass()))
        thrown = False
        try:
            # PySpark replaces this function in every process that has a session, and looks for errors in Spark's JVM.
            with patch("py4j.java_gateway.get_return_value", py4j.protocol.get_return_value):
                main.invoke(None, self._java.array(jvm.java.lang.Object, [texts]))
        except Py4JJavaError as error:
            thrown = True
            if not self._exits.size():
                error.java_exception.getCause().printStackTrace()
        # Some tools catch what their first exit throws, and exit again.
        status = self._exits.toByteArray()[0] if self._exits.size() else int(thrown)
        printed, errors = (_TRACE.sub("", stream.toString()) for stream in (self._printed, self._errors))
        return Output(status, printed, errors)

    def _throw_instead_of_exiting(self) -> None:
        """Let `Exit.exit(status)` note the status and throw an exception, without any Java source."""
        jvm = self._java.jvm
        lang, handles = jvm.java.lang, jvm.java.lang.invoke.MethodHandles
        method_type = jvm.java.lang.invoke.MethodType.methodType
        lookup = handles.publicLookup()
        thrown = lang.Class.forName(_EXIT)
        void, number = lang.Void.TYPE, lang.Integer.TYPE
        write = lookup.findVirtual(self._exits.getClass(), "write", method_type(void, number))
        note = handles.insertArguments(write, 0, self._java.array(lang.Object, [self._exits]))
        new = lookup.findConstructor(thrown, method_type(void, number))
        throw = handles.filterReturnValue(new, handles.throwException(void, thrown))
        both = handles.foldArguments(throw, note)
        execute = handles.dropArguments(both, 1, self._classes(lang.Class.forName("java.lang.String")))
        procedure = lang.Class.forName("org.apache.kafka.common.utils.Exit$Procedure")
        implementation = jvm.java.lang.invoke.MethodHandleProxies.asInterfaceInstance(procedure, execute)
        jvm.org.apache.kafka.common.utils.Exit.setExitProcedure(implementation)
        jvm.org.apache.kafka.common.utils.Exit.setHaltProcedure(implementation)

    def _classes(self, only: Any) -> Any:
        return self._java.array(self._java.jvm.java.lang.Class, [only])


@cache
def shared_tools() -> KafkaTools:
    """Return the tools of Kafka 4.3 for all tests in this process. Skips the test as JavaGateway does."""
    return KafkaTools(shared_gateway())
