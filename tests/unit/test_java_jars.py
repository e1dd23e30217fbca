"""Java is found or asked for in a sentence; jars come whole, once, or not at all.

A script stands in for `java`: it answers -version, and fetches as the test tells it to.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from importlib.resources import files
from pathlib import Path

import pytest

from tidegate.errors import SetupError
from tidegate.spark import java
from tidegate.spark.jars import jars_folder, spark_jars
from tidegate.spark.java import find_java, java_version

JAVA = """#!/bin/sh
if [ "$1" = -version ]; then echo 'openjdk version "{version}" 2021-01-01' >&2; exit 0; fi
while [ "$1" != -retrieve ]; do shift; done
echo fetched >> "$FAKE/fetches"
jars="${{2%%/jars/*}}/jars/spark"
mkdir -p "$jars"
for name in $(cat "$FAKE/names"); do
    case "$(cat "$FAKE/mode")" in
        whole) cp "$FAKE/empty.zip" "$jars/$name" ;;
        half) printf 'PK half a jar' > "$jars/$name" ;;
        fails) printf 'PK half a jar' > "$jars/$name"
               echo ':: UNRESOLVED DEPENDENCY: io.delta#delta: not found'; exit 1 ;;
        silent) exit 1 ;;
        hangs) printf 'PK half a jar' > "$jars/$name"
               echo > "$FAKE/begun"; read x < "$FAKE/never" ;;
    esac
done
"""
EMPTY_ZIP = b"PK\x05\x06" + bytes(18)


class Fake:
    """A folder on the PATH with a `java` in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.java = folder / "java"
        self.cache = folder / "cache"
        self.answer("17.0.2")
        names = [
            f"{one.get('name')}-{one.get('rev')}.jar"
            for one in ElementTree.fromstring(
                files("tidegate").joinpath("jars.xml").read_text()
            ).iter("dependency")
            if str(one.get("conf")).startswith("spark")
        ]
        (folder / "names").write_text("\n".join(names))
        (folder / "empty.zip").write_bytes(EMPTY_ZIP)
        os.mkfifo(folder / "begun")
        os.mkfifo(folder / "never")
        self.behave("whole")

    def answer(self, version: str) -> None:
        self.script(JAVA.format(version=version))

    def script(self, text: str) -> None:
        self.java.write_text(text)
        self.java.chmod(0o755)

    def behave(self, mode: str) -> None:
        (self.folder / "mode").write_text(mode)

    @property
    def fetches(self) -> int:
        log = self.folder / "fetches"
        return len(log.read_text().splitlines()) if log.exists() else 0

    def left(self) -> list[str]:
        """What is in the cache, the lock file aside."""
        return [path.name for path in self.cache.iterdir() if path.suffix != ".lock"]

    def start(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "tidegate.spark.jars"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    fake = Fake(tmp_path)
    monkeypatch.setenv("FAKE", str(tmp_path))
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.defpath}")
    monkeypatch.setenv("TIDEGATE_CACHE", str(fake.cache))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.delenv("TIDEGATE_IVY_SETTINGS", raising=False)
    monkeypatch.setattr(java, "INSTALLED", tmp_path / "none installed")
    return fake


class TestJava:
    @pytest.mark.parametrize(("version", "major"), [("17.0.2", 17), ("21", 21), ("26-ea", 26)])
    def test_one_that_is_new_enough_is_taken(self, fake: Fake, version: str, major: int) -> None:
        fake.answer(version)
        assert find_java() == fake.java
        assert java_version(fake.java) == major

    @pytest.mark.parametrize(("version", "major"), [("1.8.0_292", 8), ("11.0.2", 11)])
    def test_one_that_is_too_old_is_named(self, fake: Fake, version: str, major: int) -> None:
        fake.answer(version)
        with pytest.raises(SetupError) as refused:
            find_java()
        assert str(refused.value) == (
            "Spark needs Java 17 or later and none was found; found only"
            f" {fake.java} (Java {major}); install one (Debian: apt-get install"
            " openjdk-17-jre-headless) or set JAVA_HOME"
        )

    @pytest.mark.parametrize(
        "script",
        [
            "#!/bin/sh\nexit 3\n",
            "#!/bin/sh\necho hello\n",
            "#!/bin/sh\nprintf '\\377\\376 not a text' >&2\n",
            "#!/no/such/interpreter\n",
            "not a program at all",
            "",
        ],
    )
    def test_one_that_is_broken_is_named_as_no_java(self, fake: Fake, script: str) -> None:
        fake.script(script)
        with pytest.raises(SetupError, match=r"found only .*/java \(no Java\); install one"):
            find_java()

    def test_without_any_it_says_what_to_do(
        self, fake: Fake, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fake.java.unlink()
        monkeypatch.setenv("PATH", str(fake.folder))
        with pytest.raises(SetupError, match="none was found; install one"):
            find_java()

    def test_java_home_wins_and_a_wrong_one_does_not_stop_the_search(
        self, fake: Fake, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        home = fake.folder / "home"
        monkeypatch.setenv("JAVA_HOME", str(home))
        assert find_java() == fake.java
        (home / "bin").mkdir(parents=True)
        (home / "bin" / "java").symlink_to(fake.java)
        assert find_java() == home / "bin" / "java"

    def test_one_that_is_installed_but_on_no_path_is_found(
        self, fake: Fake, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        place = fake.folder / "jvm" / "java-17" / "bin"
        place.mkdir(parents=True)
        fake.java.rename(place / "java")
        monkeypatch.setenv("PATH", str(fake.folder))
        monkeypatch.setattr(java, "INSTALLED", fake.folder / "jvm")
        assert find_java() == place / "java"


class TestJars:
    def test_they_are_fetched_once(self, fake: Fake) -> None:
        first = spark_jars()
        assert [jar.name for jar in first] == sorted((fake.folder / "names").read_text().split())
        assert spark_jars() == first
        assert fake.fetches == 1
        assert fake.left() == [jars_folder().name]

    @pytest.mark.parametrize("mode", ["half", "fails", "silent"])
    def test_a_fetch_that_fails_leaves_nothing_and_the_next_one_is_whole(
        self, fake: Fake, mode: str
    ) -> None:
        fake.behave(mode)
        with pytest.raises(SetupError) as refused:
            spark_jars()
        assert "\n" not in str(refused.value)
        assert fake.left() == []
        fake.behave("whole")
        assert len(spark_jars()) == 2

    def test_a_failure_says_why_and_what_to_do(self, fake: Fake) -> None:
        fake.behave("fails")
        with pytest.raises(SetupError, match=r"UNRESOLVED DEPENDENCY.*TIDEGATE_IVY_SETTINGS"):
            spark_jars()

    def test_a_fetch_that_is_killed_leaves_nothing_that_looks_whole(self, fake: Fake) -> None:
        fake.behave("hangs")
        process = fake.start()
        assert (fake.folder / "begun").read_text() == "\n"
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        assert not jars_folder().exists()
        fake.behave("whole")
        assert len(spark_jars()) == 2
        assert fake.left() == [jars_folder().name]

    def test_of_two_at_once_one_fetches_and_both_have_them(self, fake: Fake) -> None:
        processes = [fake.start(), fake.start()]
        said = [process.communicate() for process in processes]
        assert [process.returncode for process in processes] == [0, 0], said
        assert fake.fetches == 1
        assert len(spark_jars()) == 2

    def test_jars_that_somebody_thinned_out_are_fetched_again(self, fake: Fake) -> None:
        spark_jars()[0].unlink()
        assert len(spark_jars()) == 2
        assert fake.fetches == 2

    @pytest.mark.parametrize("place", ["a file for a folder", "no folder to be made"])
    def test_a_cache_that_cannot_be_written_is_told_in_a_sentence(
        self, fake: Fake, monkeypatch: pytest.MonkeyPatch, place: str
    ) -> None:
        name = fake.folder / "names" if place.startswith("a") else Path("/proc/nothing/here")
        monkeypatch.setenv("TIDEGATE_CACHE", str(name))
        with pytest.raises(SetupError, match=r"cannot be kept in .*TIDEGATE_CACHE"):
            spark_jars()

    def test_make_setup_is_told_in_a_sentence_too(self, fake: Fake) -> None:
        fake.behave("silent")
        process = fake.start()
        _, said = process.communicate()
        assert process.returncode == 1
        assert said.startswith("the jars for Spark could not be fetched")
        assert len(said.splitlines()) == 1
