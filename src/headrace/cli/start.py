"""`headrace start`: run a broker until it is stopped."""

import asyncio
import gc
import logging
import os
import resource
import select
import sys
from typing import TYPE_CHECKING, Final

from headrace import __version__
from headrace.cli.interruption import stop_signals
from headrace.cli.start_args import StartOptions
from headrace.config import BrokerConfig, ConfigError, load
from headrace.errors import KafkaError
from headrace.log_lines import LineFormatter
from headrace.wording import printable

if TYPE_CHECKING:
    from headrace.broker.node import Node

DEFAULT_DATA: Final = "headrace-data"
DEFAULT_LISTEN: Final = ("127.0.0.1", 9092)
_LOG_LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
_MAX_SETTINGS: Final = 1 << 20
"""Maximum size of a settings file in bytes."""
_PIPE_TIMEOUT_S: Final = 5.0
_FEWEST_FILES: Final = 48
"""Descriptors for a broker without topics or clients, plus a reserve."""
_NEVER: Final = 2**63 - 1
_SWITCH_INTERVAL_S: Final = 0.0005
"""Time that another thread may keep the GIL while the event loop waits for it after a system call."""

log = logging.getLogger(__name__)


def run(options: StartOptions) -> int:
    """Serve until a signal ends it. Return the exit code: 0, or 1 with the reason on stderr if it cannot start."""
    gc.disable()  # start-up creates no garbage; the node enables the collector once it serves
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    try:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(LineFormatter("%(asctime)s %(levelname)-7s %(name)s  %(message)s"))
        logging.basicConfig(level=_log_level(), handlers=[handler])
        _allow_many_files()
        config = _configuration(options)
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(_serve(config, until_eof=options.until_eof))
    except (ConfigError, KafkaError) as error:
        print(f"headrace: {error}", file=sys.stderr)
        return 1
    except OSError as error:  # permissions, descriptors, memory
        print(f"headrace: cannot start: {error}", file=sys.stderr)
        return 1
    return 0


def _log_level() -> str:
    text = os.environ.get("HEADRACE_LOG_LEVEL", "").strip()
    if text and text.upper() not in _LOG_LEVELS:
        raise ConfigError("HEADRACE_LOG_LEVEL", text, f"must be one of {', '.join(_LOG_LEVELS)}")
    return text.upper() or "INFO"


def _allow_many_files() -> None:
    """Raise the limit on open files to the hard limit, as Java does: each log and each client needs descriptors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError):  # macOS reports a higher limit than it allows
        log.debug("Cannot raise the limit on open files from %d to %d", soft, hard)
    if 0 <= hard < _FEWEST_FILES:
        raise ConfigError(
            "ulimit -n", None, f"`ulimit -n` allows {hard} open files: a broker needs at least {_FEWEST_FILES}"
        )


def loop_factory() -> "type[asyncio.AbstractEventLoop] | None":
    """Return the class of uvloop's event loop, or None for asyncio's if uvloop is not installed."""
    try:
        import uvloop
    except ImportError:  # no wheel for this platform: use asyncio's slower loop
        return None
    return uvloop.Loop


def _configuration(options: StartOptions) -> BrokerConfig:
    file_text = None
    if options.config is not None:
        try:
            file_text = settings_text(options.config)
        except OSError as error:
            problem = f"cannot read {printable(options.config)}: {error.strerror or error}"
            raise ConfigError("--config", None, problem) from None
    assignments = [f"{key}={value}" for key, value in options.settings.items()]
    if options.data is not None:
        assignments.append(f"log.dirs={options.data}")
    if options.listen is not None:
        host, port = options.listen
        assignments.append(f"listeners=PLAINTEXT://{f'[{host}]' if ':' in host else host}:{port}")
    defaults = {"log.dirs": DEFAULT_DATA, "listeners": "PLAINTEXT://{}:{}".format(*DEFAULT_LISTEN)}
    return load(file_text, dict(os.environ), assignments, defaults)


def settings_text(path: str, timeout_s: float = _PIPE_TIMEOUT_S) -> str:
    """Return the text of a settings file: UTF-8, or else Latin-1, as Java reads properties files.

    The file may be a pipe, whose writer may pause for up to `timeout_s`. Raises OSError.
    """
    # Opening a pipe without a writer would block.
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb", buffering=0) as file:
        data = bytearray()
        poller = select.poll()
        poller.register(file, select.POLLIN)
        while len(data) <= _MAX_SETTINGS:
            if not poller.poll(timeout_s * 1000):
                raise OSError(f"no data from this pipe for {timeout_s:.0f} s")
            part = file.read(_MAX_SETTINGS + 1 - len(data))
            if not part:
                break
            data += part
    if len(data) > _MAX_SETTINGS:
        raise OSError(f"it is larger than {_MAX_SETTINGS >> 20} MiB")
    if b"\0" in data:
        raise OSError("it is not a text file: it contains zero bytes")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return data.decode("latin-1")


async def _serve(config: BrokerConfig, *, until_eof: bool) -> None:
    from headrace.broker.node import Node, default_directories
    from headrace.wire.record_checks import COMPILED

    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in stop_signals():
        loop.add_signal_handler(number, stopped.set)
    if until_eof:
        _stop_at_eof(loop, stopped)
    node = Node(config, default_directories(config))
    if config.zookeeper_connect is None:
        await node.start()
    elif not await _joined(node, stopped):
        return
    if not COMPILED:
        log.warning(
            "The record checks are not compiled and use more CPU: reinstall Headrace from a wheel for this platform, or"
            " with a C compiler (apt-get install build-essential)"
        )
    try:
        print(banner(node), flush=True)
    except OSError as error:
        # Serve even if standard output is a closed pipe, or a file on a full disk.
        log.warning("Cannot write to standard output: %s", error.strerror or error)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    failed = loop.create_task(node.failed.wait())
    failed.add_done_callback(lambda _: stopped.set())
    await stopped.wait()
    if node.failed.is_set():
        # Exit immediately, as Kafka does. The log directories may have failed, or belong to another process by now:
        # closing the logs could damage them.
        logging.shutdown()
        os._exit(1)
    failed.cancel()
    log.info("Shutting down")
    await node.stop()


async def _joined(node: "Node", stopped: asyncio.Event) -> bool:
    """Start a member of a cluster. Return False if it is stopped while it waits for ZooKeeper."""
    starting = asyncio.ensure_future(node.start())
    stopping = asyncio.ensure_future(stopped.wait())
    await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if starting.done():
        await starting
        return True
    starting.cancel()
    await asyncio.wait((starting,))
    return False


def _stop_at_eof(loop: asyncio.AbstractEventLoop, stopped: asyncio.Event) -> None:
    """Set `stopped` at the end of standard input. Raises ConfigError if standard input is a file."""
    stdin = 0  # sys.stdin is None if it is closed

    def readable() -> None:
        if not os.read(stdin, 4096):
            loop.remove_reader(stdin)
            stopped.set()

    try:
        loop.add_reader(stdin, readable)
    except OSError:
        raise ConfigError("--until-eof", None, "--until-eof needs a pipe or a terminal as standard input") from None


def banner(node: "Node") -> str:
    """Return the message that the broker prints once it serves."""
    rows = [
        (
            "address",
            ", ".join(
                str(listener) if listener.name != "PLAINTEXT" else _address(listener) for listener in node.listeners
            ),
        ),
        ("broker id", str(node.config.node_id)),
        ("cluster id", node.cluster_id),
        ("data", ", ".join(str(directory) for directory in node.log_dirs.directories)),
        ("durability", durability(node.config)),
    ]
    if node.http is not None:
        rows.insert(1, ("http", f"http://{node.http.address}"))
    if node.adoption is not None:
        rows.append(("adopted", node.adoption.summary()))
    lines = [f"Headrace {__version__} is ready. Ctrl-C stops it."]
    lines += [f"  {name:<11} {value}" for name, value in rows]
    return "\n".join(lines)


def _address(listener: object) -> str:
    return str(listener).partition("://")[2]


def durability(config: BrokerConfig) -> str:
    """Describe when an acknowledged record is on disk."""
    if config.log_flush_interval_messages == 1:
        return "fsync (every record is on disk before it is acknowledged)"
    when = []
    if config.log_flush_interval_messages < _NEVER:
        when.append(f"every {config.log_flush_interval_messages} records")
    interval_ms = config.log_flush_interval_ms
    if interval_ms is None:
        interval_ms = config.log_flush_scheduler_interval_ms
    if interval_ms < _NEVER:
        when.append(f"every {interval_ms} ms")
    written = f"fsync {' and '.join(when)}" if when else "the operating system decides when to write to disk"
    return f"page cache (acknowledged records survive a crash of the broker; {written})"
