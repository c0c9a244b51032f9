"""Debian's clickhouse-server for one test process: on free ports of 127.0.0.1, and stopped by its id."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from airflow_dpone.source_clickhouse.address import ServerAddress

BINARY = shutil.which("clickhouse-server") or (
    "/usr/sbin/clickhouse-server" if Path("/usr/sbin/clickhouse-server").exists() else None
)
PASSWORD = "only-for-this-test"

CONFIG = """
<yandex>
  <logger><level>warning</level><log>{home}/log</log><errorlog>{home}/errorlog</errorlog></logger>
  <listen_host>127.0.0.1</listen_host><tcp_port>{port}</tcp_port><http_port>{http_port}</http_port>
  <path>{home}/data/</path><tmp_path>{home}/tmp/</tmp_path>
  <users_config>{home}/users.xml</users_config>
  <default_profile>default</default_profile><default_database>default</default_database>
  <mark_cache_size>100000000</mark_cache_size><uncompressed_cache_size>0</uncompressed_cache_size>
  <query_log><database>system</database><table>query_log</table>
    <flush_interval_milliseconds>100</flush_interval_milliseconds></query_log>
</yandex>
"""
USERS = """
<yandex>
  <profiles>
    <default><max_memory_usage>2000000000</max_memory_usage><log_queries>1</log_queries></default>
    <reports><readonly>1</readonly><extremes>1</extremes></reports>
  </profiles>
  <users>
    <default><password></password><profile>default</profile><quota>all</quota>
      <networks><ip>127.0.0.1</ip></networks></default>
    <reporter><password>{password}</password><profile>reports</profile><quota>all</quota>
      <networks><ip>127.0.0.1</ip></networks></reporter>
  </users>
  <quotas><all><interval><duration>3600</duration><queries>0</queries><errors>0</errors>
    <result_rows>0</result_rows><read_rows>0</read_rows><execution_time>0</execution_time></interval></all></quotas>
</yandex>
"""


def _free_ports(count: int) -> list[int]:
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    return ports


@dataclass
class DebianServer:
    """A running server."""

    process: subprocess.Popen[bytes]
    port: int
    http_port: int

    @classmethod
    def start(cls, home: Path) -> DebianServer:
        """Waits until it listens, at most half a minute."""
        port, http_port = _free_ports(2)
        (home / "config.xml").write_text(CONFIG.format(home=home, port=port, http_port=http_port))
        (home / "users.xml").write_text(USERS.format(password=PASSWORD))
        with (home / "output").open("wb") as output:
            process = subprocess.Popen(
                [str(BINARY), f"--config-file={home}/config.xml"],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=home,
            )
        server = cls(process, port, http_port)
        for _ in range(300):
            if process.poll() is not None:
                break
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
            except OSError:
                time.sleep(0.1)
            else:
                return server
        server.stop()
        raise RuntimeError(f"clickhouse-server did not start: {(home / 'output').read_text()[-2000:]}")

    @property
    def address(self) -> ServerAddress:
        """As the default user, who needs no password."""
        return ServerAddress("127.0.0.1", self.port, send_receive_timeout=20.0)

    def stop(self) -> None:
        """Exactly this one."""
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(20)
