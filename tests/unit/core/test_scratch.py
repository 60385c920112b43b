"""Scratch folders go with their work, or with the next after a kill."""

import subprocess
import sys
from pathlib import Path

from orchard.core.scratch import scratch

_HOLD = """
import sys, time
from pathlib import Path
from orchard.core.scratch import scratch
with scratch(Path(sys.argv[1])) as folder:
    (folder / "half").write_text("done")
    print(folder, flush=True)
    time.sleep(600)
"""


def test_a_folder_is_gone_after_its_work(tmp_path: Path) -> None:
    with scratch(tmp_path / "room") as one, scratch(tmp_path / "room") as other:
        assert one != other
        (one / "deep").mkdir()
        assert sorted((tmp_path / "room").iterdir()) == sorted([one, other])
    assert list((tmp_path / "room").iterdir()) == []


def test_what_a_killed_process_left_goes_with_the_next_and_what_a_living_one_uses_stays(tmp_path: Path) -> None:
    running = [
        subprocess.Popen([sys.executable, "-c", _HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    try:
        killed, living = (Path(each.stdout.readline().strip()) for each in running if each.stdout)
        running[0].kill()
        running[0].wait()
        with scratch(tmp_path) as own:
            assert sorted(tmp_path.iterdir()) == sorted([living, own])
            assert (living / "half").read_text() == "done"
        assert killed not in tmp_path.iterdir()
    finally:
        for each in running:
            each.kill()
            each.communicate()
