"""Modules load expensive imports only when needed; every test starts a new Python."""

import subprocess
import sys
from pathlib import Path


def test_a_help_page_loads_no_client_library() -> None:
    assert not _loaded_by("import headrace.cli.main", {"confluent_kafka", "kafka", "pyspark", "rich"})


def test_a_broker_parses_its_options_without_the_command_line_libraries() -> None:
    code = "import headrace.__main__, headrace.cli.start_args as a; a.parse(['--set', 'a=1'])"
    assert not _loaded_by(code, {"typer", "rich", "argparse", "confluent_kafka", "headrace.cli.main"})


def test_a_compacting_broker_loads_no_module_of_its_cleaner_processes() -> None:
    assert not _loaded_by("import headrace.broker.node, headrace.storage.cleaner.log_cleaner", {"numpy"})


def test_a_broker_without_others_loads_nothing_for_a_cluster() -> None:
    cluster = {"kazoo", "headrace.client.link", "headrace.cluster.membership", "headrace.broker.membership"}
    assert not _loaded_by("import headrace.broker.node", cluster | {"headrace.replication.following.partition"})


def test_a_starting_broker_loads_no_handlers_of_administrators() -> None:
    late = {f"headrace.broker.apis.{name}" for name in ("configs", "features", "log_dirs", "placement", "topics")}
    assert not _loaded_by("import headrace.broker.node", late | {"headrace.cluster.topic_changes"})


def test_importing_the_settings_loads_nothing_expensive() -> None:
    assert not _loaded_by("import headrace.config", {"dataclasses", "json", "kio", "difflib", "asyncio"})


def test_the_first_expression_loads_re2_without_output() -> None:
    code = (
        "import sys, headrace.coordinator.group_coordinator, headrace.broker.topic_table\n"
        "assert 're2' not in sys.modules\n"
        "from headrace.coordinator.groups.expressions import compiled\n"
        "from headrace.errors import KafkaError\n"
        "for regex in ('(', r'\\pL{249}', '((a{100}){100}){100}'):\n"
        "    try: compiled(regex)\n"
        "    except KafkaError: pass\n"
        "    else: sys.exit(regex)\n"
        "assert 're2' in sys.modules\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_a_member_of_a_cluster_needs_kazoo(tmp_path: Path) -> None:
    arguments = ["headrace", "start", "--data", str(tmp_path / "data"), "--set", "zookeeper.connect=127.0.0.1:1"]
    code = f"import sys; sys.modules['kazoo'] = None; sys.argv = {arguments!r}\n"
    code += "import headrace.__main__; sys.exit(headrace.__main__.main())"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert (result.returncode, result.stdout) == (1, "")
    assert "needs the package kazoo: pip install 'headrace[zookeeper]'" in result.stderr


def _loaded_by(code: str, modules: set[str]) -> set[str]:
    """Return those of `modules` that a new process loads when it runs `code`."""
    code += f"\nimport sys; print(*{modules!r} & sys.modules.keys())"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(result.stdout.split())
