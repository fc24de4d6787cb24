"""Network file systems and other machines are told apart from local ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamrunner.sinks.embedded import host
from streamrunner.sinks.embedded.host import check_filesystem, filesystem_of, this_host
from streamrunner.sinks.embedded.server import EmbeddedServer
from streamrunner.sinks.errors import SinkError

MOUNTS = """\
proc /proc proc rw 0 0
/dev/vda / ext4 rw,relatime 0 0
server:/home /mnt/home nfs4 rw 0 0
/dev/vdb /mnt/home/scratch xfs rw 0 0
//nas/my\\040share /mnt/my\\040share cifs rw 0 0
bucket /mnt/over ext4 rw 0 0
bucket /mnt/over fuse.s3fs rw 0 0
broken
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/srv/data", "ext4"),
        ("/mnt/home/me/data", "nfs4"),
        ("/mnt/home", "nfs4"),
        ("/mnt/homestead", "ext4"),
        ("/mnt/home/scratch/data", "xfs"),
        ("/mnt/my share/data", "cifs"),
        ("/mnt/over/x", "fuse.s3fs"),
    ],
)
def test_the_innermost_and_latest_mount_counts(path: str, kind: str) -> None:
    assert filesystem_of(Path(path), MOUNTS) == kind


def test_a_link_is_followed_to_where_the_files_are(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/mnt/home/me")
    assert filesystem_of(tmp_path / "link", MOUNTS) == "nfs4"


def test_a_system_without_a_mount_table_counts_as_local() -> None:
    assert filesystem_of(Path("/srv"), "") == ""
    check_filesystem(Path("/srv"), "")


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "fuse.sshfs", "lustre", "ceph"])
def test_a_network_file_system_is_refused_with_the_remedy(kind: str) -> None:
    with pytest.raises(SinkError, match=rf"/srv is on a network file system \({kind}\).*--data-dir") as caught:
        check_filesystem(Path("/srv"), kind)
    assert caught.value.code == "data_dir_foreign"


@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs", "zfs", "tmpfs", "overlay", "apfs"])
def test_local_file_systems_are_fine(kind: str) -> None:
    check_filesystem(Path("/srv"), kind)


def test_a_data_dir_on_a_network_file_system_starts_nothing(
    tmp_path: Path, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "mounts"
    table.write_text(f"nas:/x {data_dir} nfs4 rw 0 0\n")
    monkeypatch.setattr(host, "_MOUNTS", table)
    with pytest.raises(SinkError) as caught:
        EmbeddedServer(data_dir)
    assert caught.value.code == "data_dir_foreign"
    assert list((data_dir / "server").iterdir()) == []


def test_a_host_keeps_its_identity_and_does_not_publish_its_machine_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = tmp_path / "machine-id"
    secret.write_text("f00dfacef00dfacef00dfacef00dface\n")
    monkeypatch.setattr(host, "_MACHINE_IDS", (tmp_path / "absent", secret))
    one = this_host()
    assert one == this_host()
    assert "f00dface" not in one.id
    monkeypatch.setattr(host, "_MACHINE_IDS", ())
    assert this_host().id != one.id
    assert this_host() == this_host()
