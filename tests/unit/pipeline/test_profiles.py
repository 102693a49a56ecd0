import re

import pytest

from headrace.pipeline.errors import PipelineError
from headrace.pipeline.spec import profiles


def test_the_master_selects_the_profile() -> None:
    selected = {
        "local": "laptop",
        "local[*]": "laptop",
        "local[4]": "laptop",
        "local-cluster[2,1,1024]": "server",
        "spark://host:7077": "server",
        "k8s://https://host:6443": "server",
        "yarn": "server",
    }
    assert {master: profiles.profile_of(master) for master in selected} == selected


def test_another_master_is_refused() -> None:
    for master in ("", "localhost", "spark:/host", "local[2"):
        with pytest.raises(PipelineError, match=f"^'{re.escape(master)}' is not a Spark master: use"):
            pytest.fail(f"{master!r}: {profiles.profile_of(master)}")


def test_both_profiles_have_the_settings_on_which_results_depend() -> None:
    for settings in (profiles.settings("laptop"), profiles.settings("server")):
        assert profiles.fixed().items() <= settings.items()
        assert all(settings.values())


def test_only_a_laptop_hides_from_the_network() -> None:
    assert profiles.settings("laptop")["spark.driver.host"] == "127.0.0.1"
    assert "spark.driver.host" not in profiles.settings("server")


def test_no_setting_is_listed_twice() -> None:
    names = [item.name for item in profiles.TABLE]
    assert len(set(names)) == len(names)
