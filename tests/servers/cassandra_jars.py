"""The jars of Apache Cassandra, fetched once by Maven into the user's cache folder.

There is no package of it for Debian; Maven Central has the jars.
"""

from __future__ import annotations

import shutil
import subprocess
from functools import partial
from pathlib import Path

import pytest

from tests.servers.process import needed
from tests.servers.shared import fetched, user_cache

VERSION = "5.0.9"

_POM = """\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>local</groupId>
  <artifactId>cassandra-runtime</artifactId>
  <version>1</version>
  <packaging>pom</packaging>
  <dependencies>
    <dependency>
      <groupId>org.apache.cassandra</groupId>
      <artifactId>cassandra-all</artifactId>
      <version>{version}</version>
    </dependency>
  </dependencies>
</project>
"""


def jars(version: str = VERSION) -> Path:
    """The folder of Cassandra's jars, fetched if they are not there yet."""
    return fetched(user_cache(), f"cassandra-{version}", partial(_fetch, version))


def _fetch(version: str, folder: Path) -> None:
    fetching = folder.with_name(folder.name + ".part")
    shutil.rmtree(fetching, ignore_errors=True)  # of somebody who was killed
    fetching.mkdir()
    pom = fetching / "pom.xml"
    pom.write_text(_POM.format(version=version))
    done = subprocess.run(
        [
            *(needed("mvn", "maven"), "-q", "-B", "-f", pom),
            "org.apache.maven.plugins:maven-dependency-plugin:3.6.0:copy-dependencies",
            f"-DoutputDirectory={fetching}",
        ],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        said = (done.stdout + done.stderr)[-2000:]
        pytest.fail(f"Maven could not fetch Cassandra {version}: {said}")
    fetching.rename(folder)
