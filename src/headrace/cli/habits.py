"""Options and commands of Kafka's and other tools, with the `headrace` equivalents that error messages suggest.

The foreign spellings are not accepted, so that all scripts use the same ones; only other names of `--bootstrap` are
(`cli/main.py`). Pure.
"""

import shlex
from collections.abc import Mapping, Sequence
from typing import Final

_TOPIC: Final = "The topic is an argument: `{path} {value:TOPIC}`."
_TOPIC_LAST: Final = "Name topics as arguments: `{path} {value:TOPIC}`."
_GROUP: Final = "The group is an argument: `{path} {value:GROUP}`."
_NO_CLIENT_SETTINGS: Final = "Client settings are not supported: `{path} --help` lists the options."
_WHOLE: Final = "`headrace groups describe GROUP` prints members, offsets and state together."
_ID: Final = "The transactional id is an argument: `{path} {value:TRANSACTIONAL_ID}`."
_PLACE: Final = "The partition is an argument, as TOPIC:PARTITION: `{path} orders:3`."
_SECONDS: Final = "`--timeout` takes seconds: `--timeout {seconds}`."
_TO: Final = "Use `--to {value:WHERE}`."
_LACKING: Final = "`headrace cluster` lists partitions with missing replicas or without a leader."
_PLAN_FILE: Final = "The plan is an argument: `{path} {value:FILE}`."
_ALL: Final = "This is the default."

_EVERYWHERE: Final[Mapping[str, str]] = {
    "-V": "`headrace --version` prints the version.",
    "--version": "`headrace --version` prints the version.",
    "--zookeeper": "Commands talk to a broker: `--bootstrap HOST:PORT`.",
    "--command-config": _NO_CLIENT_SETTINGS,
    "--bootstrap-controller": "Commands talk to a broker: `--bootstrap HOST:PORT`.",
    "--host": "Use `--bootstrap HOST:PORT`.",
    "--port": "Use `--bootstrap HOST:PORT`, for example `--bootstrap 127.0.0.1:{value:9092}`.",
}

_OPTIONS: Final[Mapping[str, Mapping[str, str]]] = {
    "headrace start": {
        "--port": "Use `--listen 127.0.0.1:{value:9092}`.",
        "-p": "Use `--listen 127.0.0.1:{value:9092}`.",
        "--host": "Use `--listen {value:127.0.0.1}:9092`.",
        "--bootstrap": "A broker has listeners: `--listen {value:127.0.0.1:9092}`.",
        "--override": "Use `--set {value:KEY=VALUE}`.",
        "--properties": "Use `--config {value:server.properties}`.",
        "--config-file": "Use `--config {value:server.properties}`.",
        "-c": "Use `--config {value:server.properties}`.",
        "--data-dir": "Use `--data {value:DIR}`.",
        "--dir": "Use `--data {value:DIR}`.",
        "--log-dir": "Use `--data {value:DIR}`.",
        "--log-dirs": "Use `--data DIR`, or `--set log.dirs={value:DIR,DIR}` for several.",
        "--partitions": "Use `--set num.partitions={value:N}`.",
        "--replication-factor": "Use `--set default.replication.factor={value:N}`.",
        "--daemon": "The broker stays in the foreground: run it under systemd, or in the background with `&`.",
        "-daemon": "The broker stays in the foreground: run it under systemd, or in the background with `&`.",
        "-d": "Use `--data DIR`; to run the broker in the background, put `&` at the end.",
    },
    "headrace consume": {
        "--topic": _TOPIC,
        "-t": _TOPIC,
        "--from-beginning": "This is the default; `--from end` waits for new records.",
        "--offset": "Use `--from {value:OFFSET}`.",
        "-o": "Use `--from {value:OFFSET}`.",
        "--timeout-ms": _SECONDS,
        "--max-records": "Use `--max-messages {value:N}`.",
        "-c": "Use `--max-messages {value:N}`.",
        "--property": "`--print-key`, `--print-timestamp` and others print more than the value; see --help.",
        "--formatter-property": "`--print-key`, `--print-timestamp` and others print more than the value; see --help.",
        "--formatter": "Use `--format TEMPLATE`, or `--jsonl`.",
        "--include": "It reads one topic: `headrace consume TOPIC`.",
        "--whitelist": "It reads one topic: `headrace consume TOPIC`.",
        "--isolation-level": "It reads only committed records.",
        "--group-id": "Use `--group {value:GROUP}`.",
        "--consumer-property": _NO_CLIENT_SETTINGS,
        "--consumer-config": _NO_CLIENT_SETTINGS,
        "--consumer.config": _NO_CLIENT_SETTINGS,
        "--command-property": _NO_CLIENT_SETTINGS,
        "--describe": "Use `headrace topics describe TOPIC`.",
        "--list": "Use `headrace topics list`.",
    },
    "headrace produce": {
        "--topic": _TOPIC,
        "-t": _TOPIC,
        "--property": "`--key-separator TEXT` splits a line into key and value; see --help for others.",
        "--reader-property": "`--key-separator TEXT` splits a line into key and value; see --help for others.",
        "--compression-codec": "Use `--compression {value:CODEC}`.",
        "--compression-type": "Use `--compression {value:CODEC}`.",
        "--request-required-acks": "Use `--acks {value:all}`.",
        "--request-timeout-ms": _SECONDS,
        "--timeout-ms": _SECONDS,
        "--producer-property": _NO_CLIENT_SETTINGS,
        "--producer-config": _NO_CLIENT_SETTINGS,
        "--producer.config": _NO_CLIENT_SETTINGS,
        "--command-property": _NO_CLIENT_SETTINGS,
        "--sync": "This is the default: it waits until all records are acknowledged.",
        "--partitions": "First use `headrace topics create TOPIC --partitions {value:N}`; `--partition` chooses one.",
        "--group": "Groups belong to consumers: `headrace consume TOPIC --group {value:GROUP}`.",
    },
    "headrace topics list": {
        "--topic": "Use `headrace topics describe {value:TOPIC}`.",
        "--exclude-internal": "This is the default; `--internal` shows internal topics too.",
        "--describe": "Use `headrace topics describe TOPIC`.",
    },
    "headrace topics create": {
        "--topic": _TOPIC_LAST,
        "--replica-assignment": "The cluster places the replicas: use `--partitions` and `--replication-factor`.",
        "--command-config": _NO_CLIENT_SETTINGS,
    },
    "headrace topics describe": {
        "--topic": _TOPIC_LAST,
        "--under-replicated-partitions": _LACKING,
        "--under-min-isr-partitions": _LACKING,
        "--unavailable-partitions": _LACKING,
        "--exclude-internal": "It describes the topics given as arguments.",
    },
    "headrace topics alter": {
        "--topic": _TOPIC,
        "--add-config": "Use `--config {value:KEY=VALUE}`.",
        "--entity-name": _TOPIC,
        "--replication-factor": "Use `headrace reassign plan --topics TOPIC --replication-factor {value:N}`.",
    },
    "headrace topics delete": {"--topic": _TOPIC_LAST, "--force": "`--yes` deletes without asking."},
    "headrace groups list": {
        "--all": "This is the default.",
        "--all-groups": "This is the default.",
        "--group": "Use `headrace groups describe {value:GROUP}`.",
        "--describe": "Use `headrace groups describe GROUP`.",
    },
    "headrace groups describe": {
        "--group": _GROUP,
        "--all-groups": "`headrace groups list --lag` shows all groups.",
        "--all": "`headrace groups list --lag` shows all groups.",
        "--members": _WHOLE,
        "--offsets": _WHOLE,
        "--state": _WHOLE,
        "--verbose": _WHOLE,
    },
    "headrace groups reset": {
        "--group": _GROUP,
        "--to-earliest": "Use `--to earliest`.",
        "--to-latest": "Use `--to latest`.",
        "--to-current": "Use `--to current`.",
        "--to-offset": _TO,
        "--to-datetime": _TO,
        "--by-duration": "Use `--to` with a duration: `--to 2h`.",
        "--all-topics": "This is the default; `--topic` selects topics.",
        "--dry-run": "This is the default; `--execute` resets the offsets.",
        "--export": "`--json` prints the offsets; `--from-file` reads them back.",
        "--partition": "Use `--topic TOPIC:{value:0}`.",
    },
    "headrace groups delete": {"--group": _GROUP, "--force": "`--yes` deletes without asking."},
    "headrace groups delete-offsets": {
        "--group": _GROUP,
        "--topic": "Name topics as arguments: `headrace groups delete-offsets GROUP {value:TOPIC}`.",
    },
    "headrace groups timeline": {"--group": _GROUP},
    "headrace transactions": {
        "--bootstrap": "Options come after the command: `headrace transactions list --bootstrap HOST:PORT`."
    },
    "headrace transactions list": {
        "--duration-filter": "Use `--longer-than {value:MS}ms`.",
        "--transactional-id-pattern": "Use `--pattern {value:REGEX}`.",
        "--transactional-id": "Use `headrace transactions describe {value:TRANSACTIONAL_ID}`.",
    },
    "headrace transactions describe": {"--transactional-id": _ID},
    "headrace transactions describe-producers": {
        "--topic": _PLACE,
        "--partition": _PLACE,
        "--broker-id": "Use `--broker {value:ID}`.",
    },
    "headrace transactions find-hanging": {
        "--topic": "The topic is an argument: `headrace transactions find-hanging {value:TOPIC}`.",
        "--partition": _PLACE,
        "--broker-id": "Use `--broker {value:ID}`.",
        "--max-transaction-timeout": "Use `--longer-than {value:15}m`.",
    },
    "headrace transactions abort": {
        "--topic": _PLACE,
        "--partition": _PLACE,
        "--force": "`--yes` aborts without asking.",
        "--transactional-id": "This aborts in one partition; only the producer can abort the whole transaction.",
    },
    "headrace cluster": {"--interval": "`--watch` refreshes every two seconds."},
    "headrace reassign plan": {
        "--topic": "Use `--topics {value:TOPIC}`.",
        "--broker": "Use `--brokers {value:ID,ID}`.",
        "--topics-to-move-json-file": "Use `--topics TOPIC,TOPIC`; the default is all topics.",
        "--disable-rack-aware": "Use `--ignore-racks`.",
        "--execute": "`--output FILE` writes the plan; `headrace reassign execute FILE` starts it.",
        "--remove": "Use `--retire {value:ID}`.",
    },
    "headrace reassign execute": {
        "--reassignment-json-file": _PLAN_FILE,
        "--plan": _PLAN_FILE,
        "--force": "`--yes` skips the confirmation; `--additional` starts even if other partitions are moving.",
    },
    "headrace reassign verify": {
        "--reassignment-json-file": _PLAN_FILE,
        "--plan": _PLAN_FILE,
        "--preserve-throttles": "Use `--keep-throttle`.",
    },
    "headrace reassign cancel": {
        "--reassignment-json-file": "Use `--plan {value:FILE}`.",
        "--preserve-throttles": "Use `--keep-throttle`.",
        "--all": _ALL,
    },
    "headrace reassign status": {"--list": _ALL},
    "headrace elect": {
        "--election-type": "Preferred elections are the default; use `--unclean` for unclean ones.",
        "--preferred": _ALL,
        "--all-topic-partitions": _ALL,
        "--all": _ALL,
        "--topic": "Partitions are arguments: `headrace elect {value:TOPIC}` or `headrace elect orders:0,3`.",
        "--partition": "Partitions are arguments: `headrace elect orders:{value:0}`.",
        "--path-to-json-file": "Partitions are arguments: `headrace elect orders:0,3 payments`.",
    },
    "headrace verify": {
        "--data": "Directories are arguments: `headrace verify {value:DIR}`.",
        "--files": "Directories are arguments: `headrace verify {value:DIR}`.",
    },
    "headrace": {
        "-v": "`headrace --version` prints the version.",
        "--list": "Use `headrace topics list`.",
        "--describe": "Use `headrace topics describe TOPIC`.",
        "--topic": "Options come after the command; the topic is an argument: `headrace consume {value:TOPIC}`.",
        "--bootstrap": "Options come after the command: `headrace topics list --bootstrap {value:HOST:PORT}`.",
        "--config": "Options come after the command: `headrace start --config {value:FILE}`.",
        "--data": "Options come after the command: `headrace start --data {value:DIR}`.",
        "--port": "Use `headrace start --listen 127.0.0.1:{value:9092}`.",
    },
}

_ACTIONS: Final[Mapping[str, Mapping[str, str]]] = {
    "headrace topics": {
        "--list": "list",
        "--create": "create",
        "--describe": "describe",
        "--alter": "alter",
        "--delete": "delete",
    },
    "headrace groups": {
        "--list": "list",
        "--describe": "describe",
        "--reset-offsets": "reset",
        "--delete": "delete",
        "--delete-offsets": "delete-offsets",
    },
    "headrace reassign": {
        "--generate": "plan",
        "--execute": "execute",
        "--verify": "verify",
        "--cancel": "cancel",
        "--list": "status",
    },
}
"""Options of Kafka's tools that are commands of `headrace`."""
_OWN_NAMES: Final[Mapping[str, str]] = {"--bootstrap-server": "--bootstrap", "--add-config": "--config"}
_PLACEHOLDERS: Final[Mapping[str, tuple[str, str]]] = {
    "headrace topics": ("--topic", "TOPIC"),
    "headrace groups": ("--group", "GROUP"),
    "headrace reassign": ("--reassignment-json-file", "FILE"),
}
_WITHOUT_ARGUMENT: Final = ("list", "plan", "status")

_STOP: Final = (
    "Press Ctrl-C in the broker's terminal, or send SIGTERM to its process: `pgrep -fa 'headrace start'` "
    "shows its id; `kill ID` stops it."
)
_TOPICS: Final = "Use `headrace topics`: list, create, describe, alter and delete."
_GROUPS: Final = "Use `headrace groups`: list, describe, timeline, reset, delete and delete-offsets."
_TRANSACTIONS: Final = "Use `headrace transactions`: list, describe, describe-producers, find-hanging and abort."
_CLUSTER: Final = "Use `headrace cluster`."
_REASSIGN: Final = "Use `headrace reassign`: plan, execute, status, verify and cancel."
_ELECT: Final = "Use `headrace elect`."
_PIPELINE: Final = "Use `headrace pipeline`: run, submit and more."
_START: Final = "Use `headrace start`."
_PRODUCE: Final = "Use `headrace produce TOPIC`."
_CONSUME: Final = "Use `headrace consume TOPIC`."
_LIST: Final = "Use `headrace topics list` or `headrace groups list`."
_HELP: Final = "Use `headrace --help`, or `headrace COMMAND --help`."

_COMMANDS: Final[Mapping[str, Mapping[str, str]]] = {
    "headrace": {
        **dict.fromkeys(("stop", "shutdown", "kill", "quit", "restart", "server-stop"), _STOP),
        **dict.fromkeys(("run", "serve", "server", "broker", "up", "server-start", "run-class"), _START),
        **dict.fromkeys(("topic", "topics"), _TOPICS),
        **dict.fromkeys(("group", "consumer-groups", "consumer-group", "lag", "offsets", "reset-offsets"), _GROUPS),
        **dict.fromkeys(("transaction", "transactions", "txn", "hanging", "find-hanging"), _TRANSACTIONS),
        **dict.fromkeys(("brokers", "broker-list", "controller", "metadata", "metadata-quorum", "status"), _CLUSTER),
        **dict.fromkeys(("reassign-partitions", "rebalance", "balance", "move", "decommission", "retire"), _REASSIGN),
        **dict.fromkeys(("leader-election", "election", "elect-leaders", "preferred-replica-election"), _ELECT),
        **dict.fromkeys(("job", "jobs", "spark", "spark-submit", "submit"), _PIPELINE),
        **dict.fromkeys(("producer", "console-producer", "send", "write", "publish"), _PRODUCE),
        **dict.fromkeys(("consumer", "console-consumer", "tail", "cat", "read", "subscribe"), _CONSUME),
        **dict.fromkeys(("list", "ls"), _LIST),
        "create": "Use `headrace topics create TOPIC`.",
        "describe": "Use `headrace topics describe TOPIC` or `headrace groups describe GROUP`.",
        "alter": "Use `headrace topics alter TOPIC`.",
        "delete": "Use `headrace topics delete TOPIC` or `headrace groups delete GROUP`.",
        "get-offsets": "Use `headrace topics describe TOPIC`.",
        "log-dirs": "`headrace cluster` and `headrace topics describe TOPIC` show sizes on disk.",
        **dict.fromkeys(
            ("config", "configs", "settings"),
            "Topics: `headrace topics alter TOPIC --config KEY=VALUE`. "
            "Brokers: `headrace start --set KEY=VALUE`, or Kafka's `kafka-configs.sh` for a running one.",
        ),
        "dump-log": "Use `headrace verify DIR`; Kafka's `kafka-dump-log.sh` reads the files too.",
        **dict.fromkeys(("check", "fsck"), "Use `headrace verify DIR`."),
        **dict.fromkeys(("storage", "format", "init"), "A directory needs no formatting: use `headrace start`."),
        **dict.fromkeys(("acls", "acl"), "Headrace has no ACLs."),
        **dict.fromkeys(
            ("migrate", "import", "adopt"),
            "`headrace start --data DIR` adopts a KRaft directory; for ZooKeeper, use `headrace takeover` first.",
        ),
        "version": "Use `headrace --version`.",
        "help": _HELP,
    },
    "headrace topics": {
        "ls": "Use `headrace topics list`.",
        **dict.fromkeys(("rm", "remove", "drop"), "Use `headrace topics delete TOPIC`."),
        **dict.fromkeys(("show", "info", "get", "inspect"), "Use `headrace topics describe TOPIC`."),
        **dict.fromkeys(("add", "new", "make"), "Use `headrace topics create TOPIC`."),
        **dict.fromkeys(("update", "set", "config", "change", "edit"), "Use `headrace topics alter TOPIC`."),
        "consume": _CONSUME,
        "produce": _PRODUCE,
        "help": "Use `headrace topics --help`.",
    },
    "headrace groups": {
        "ls": "Use `headrace groups list`.",
        **dict.fromkeys(("rm", "remove", "drop"), "Use `headrace groups delete GROUP`."),
        **dict.fromkeys(("show", "info", "get", "inspect", "lag"), "Use `headrace groups describe GROUP`."),
        **dict.fromkeys(("reset-offsets", "seek"), "Use `headrace groups reset GROUP --to WHERE`."),
        **dict.fromkeys(("history", "events", "log"), "Use `headrace groups timeline GROUP`."),
        "help": "Use `headrace groups --help`.",
    },
    "headrace reassign": {
        **dict.fromkeys(("generate", "preview", "balance", "rebalance"), "Use `headrace reassign plan`."),
        **dict.fromkeys(("run", "start", "apply"), "Use `headrace reassign execute FILE`."),
        **dict.fromkeys(("list", "ls", "show", "watch", "progress"), "Use `headrace reassign status`."),
        **dict.fromkeys(("stop", "abort", "rollback"), "Use `headrace reassign cancel`."),
        "help": "Use `headrace reassign --help`.",
    },
    "headrace pipeline": {
        **dict.fromkeys(("ls", "jobs"), "Use `headrace pipeline list`."),
        **dict.fromkeys(("show", "info", "get", "inspect", "explain"), "Use `headrace pipeline describe JOB`."),
        **dict.fromkeys(("spark-submit", "deploy"), "Use `headrace pipeline submit --print`."),
        "help": "Use `headrace pipeline --help`.",
    },
    "headrace transactions": {
        "ls": "Use `headrace transactions list`.",
        **dict.fromkeys(("show", "info", "get", "inspect"), "Use `headrace transactions describe TRANSACTIONAL_ID`."),
        **dict.fromkeys(("hanging", "find", "check"), "Use `headrace transactions find-hanging`."),
        **dict.fromkeys(("kill", "end", "rollback"), "Use `headrace transactions abort TOPIC:PARTITION`."),
        "producers": "Use `headrace transactions describe-producers TOPIC`.",
        "help": "Use `headrace transactions --help`.",
    },
}
_VERBS: Final = ("create", "list", "describe", "alter", "delete")
_TOOLS: Final[Mapping[str, str]] = {
    "topics": "headrace topics",
    "consumer-groups": "headrace groups",
    "reassign-partitions": "headrace reassign",
}


def for_option(path: str, option: str, args: Sequence[str]) -> str | None:
    """Return advice on an `option` that the command `path` does not have, or None."""
    if path in _ACTIONS:
        return _for_action(path, args)
    advice = _OPTIONS.get(path, {}).get(option) or _EVERYWHERE.get(option)
    return None if advice is None else _filled(advice, path, _value(option, args))


def for_command(path: str, args: Sequence[str]) -> str | None:
    """Return advice on a command that the group `path` does not have, or None."""
    name = args[0].removesuffix(".sh").removesuffix(".bat").removeprefix("kafka-")
    if path != "headrace":
        return _COMMANDS.get(path, {}).get(name)
    if name == "help" and len(args) > 1:
        return f"Use `{shlex.join(['headrace', *args[1:], '--help'])}`."
    if name in _TOOLS and len(args) > 1:
        return _for_action(_TOOLS[name], args[1:])
    return _COMMANDS[path].get(name) or _verb_and_noun(name)


def _verb_and_noun(name: str) -> str | None:
    """Recognise `create-topic`, `topic-create` and the like."""
    first, _, second = name.partition("-")
    for verb, noun in ((first, second), (second, first)):
        group = noun.removesuffix("s") + "s"
        if group in ("topics", "groups") and verb in _VERBS:
            return f"Use `headrace {group} {verb}`."
    return None


def for_argument(path: str, extra: str) -> str | None:
    """Return advice on an unexpected argument, or None."""
    return {
        "headrace start": f"For a settings file, use `--config {extra}`; for a directory, `--data {extra}`.",
        "headrace consume": "It reads one topic.",
        "headrace topics list": f"Use `headrace topics describe {extra}`.",
        "headrace groups list": f"Use `headrace groups describe {extra}`.",
    }.get(path)


def _for_action(path: str, args: Sequence[str]) -> str | None:
    """Translate options of Kafka's tool: `--create --topic orders` becomes `headrace topics create orders`."""
    actions = _ACTIONS[path]
    words = [word for arg in args for word in (arg.split("=", 1) if arg.startswith("--") else [arg])]
    action = next((actions[word] for word in words if word in actions), None)
    if action is None:
        return f"Options come after the command: `{path} {next(iter(actions.values()))} ...`." if args else None
    option, placeholder = _PLACEHOLDERS[path]
    named, rest = [], []
    position = 0
    while position < len(words):
        word = words[position]
        if word == option and position + 1 < len(words):
            position += 1
            named.append(words[position])
        elif word not in actions:
            rest.append(_OWN_NAMES.get(word, word))
        position += 1
    if action not in _WITHOUT_ARGUMENT and not named:
        named = [placeholder]
    return f"Use `{shlex.join([*path.split(), action, *named, *rest])}`."


def _value(option: str, args: Sequence[str]) -> str | None:
    for position, arg in enumerate(args):
        name, equals, value = arg.partition("=")
        if name == option:
            following = args[position + 1] if position + 1 < len(args) else "-"
            value = value if equals else following
            return None if value.startswith("-") or not value else value
    return None


def _filled(advice: str, path: str, value: str | None) -> str:
    """Fill in the command, and for `{value:PLACEHOLDER}` the value that was typed or the placeholder."""
    text = advice.replace("{path}", path)
    before, found, rest = text.partition("{value:")
    if found:
        placeholder, _, after = rest.partition("}")
        text = before + (placeholder if value is None else shlex.quote(value)) + after
    if "{seconds}" in text:
        is_number = value is not None and value.isdecimal()
        text = text.replace("{seconds}", f"{int(value) / 1000:g}" if is_number and value is not None else "10")
    return text
