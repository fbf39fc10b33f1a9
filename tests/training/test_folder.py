"""A run's folder: one process at a time, nothing left behind by a start that failed, nothing lost by one that was
killed."""

import fcntl
import json
import os
import subprocess
import sys

import pytest

from stdl_engine import checkpoints
from stdl_engine.atomic_files import write_atomically
from stdl_engine.file_locks import NAME as LOCK
from stdl_engine.locked_folder import LockedFolder
from stdl_engine.runs import RunFolder
from stdl_engine.train import main


def silent(text):
    raise AssertionError(f"nothing to say was expected, and it said {text}")


class TestLock:
    def test_a_second_one_is_refused(self, tmp_path):
        with RunFolder.create(tmp_path / "run", silent) as folder:
            folder.write("config.json", "{}")
            for method in (RunFolder.create, RunFolder.reopen):
                with (
                    pytest.raises(ValueError, match=rf"run is being written by process {os.getpid()}: wait until"),
                    method(tmp_path / "run", silent),
                ):
                    pass
        with RunFolder.reopen(tmp_path / "run", silent):
            pass
        assert not (tmp_path / "run" / LOCK).exists()

    def test_the_file_of_a_killed_process_locks_nothing(self, tmp_path):
        (tmp_path / LOCK).write_text("4194304\n")
        with RunFolder.create(tmp_path, silent):
            pass

    def test_it_goes_with_the_process(self, tmp_path):
        """A child holds the lock until it is killed."""
        code = (
            "import sys, time; from pathlib import Path; from stdl_engine.locked_folder import LockedFolder\n"
            "class F(LockedFolder): settings_file, what = 'x', 'x'\n"
            "with F.create(Path(sys.argv[1]), print): print('locked', flush=True); time.sleep(60)"
        )
        child = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        assert child.stdout.readline() == "locked\n"
        with pytest.raises(ValueError, match=f"by process {child.pid}"), RunFolder.create(tmp_path, silent):
            pass
        child.kill()
        child.wait()
        with RunFolder.create(tmp_path, silent):
            pass

    def test_a_worker_that_outlives_its_parent_does_not_hold_it(self, tmp_path):
        read, write = os.pipe()
        with RunFolder.create(tmp_path, silent):
            child = os.fork()
            if child == 0:
                os.read(read, 1)
                os._exit(0)
        try:
            handle = os.open(tmp_path, os.O_RDONLY)
            os.close(handle)
            with RunFolder.create(tmp_path, silent):
                pass
        finally:
            os.write(write, b"x")
            os.waitpid(child, 0)

    def test_a_file_system_without_locks(self, tmp_path, monkeypatch):
        def flock(handle, operation):
            raise OSError(38, os.strerror(38))

        monkeypatch.setattr(fcntl, "flock", flock)
        said = []
        with RunFolder.create(tmp_path, said.append):
            pass
        sentence = "is on a file system without locks: make sure that no other process writes there."
        assert said == [f"{tmp_path} {sentence}"]

    def test_removed_by_the_one_before_as_this_one_opens_it(self, tmp_path, monkeypatch):
        """The lock of a file that is no longer there would keep nobody out."""
        real, removed = fcntl.flock, []

        def flock(handle, operation):
            real(handle, operation)
            if not removed:
                removed.append((tmp_path / LOCK).unlink())

        monkeypatch.setattr(fcntl, "flock", flock)
        with RunFolder.create(tmp_path, silent):
            assert (tmp_path / LOCK).exists()


class TestFailedStarts:
    def test_no_folder_is_left(self, tmp_path):
        with pytest.raises(RuntimeError), RunFolder.create(tmp_path / "a" / "b" / "run", silent):  # noqa: PT012
            assert (tmp_path / "a" / "b" / "run").is_dir()
            raise RuntimeError
        assert list(tmp_path.iterdir()) == []

    def test_a_folder_that_was_there_stays(self, tmp_path):
        (tmp_path / "mine").mkdir()
        with pytest.raises(RuntimeError), RunFolder.create(tmp_path / "mine" / "run", silent):
            raise RuntimeError
        assert list(tmp_path.iterdir()) == [tmp_path / "mine"]
        assert list((tmp_path / "mine").iterdir()) == []

    def test_one_that_has_begun_stays(self, tmp_path):
        with pytest.raises(RuntimeError), RunFolder.create(tmp_path / "run", silent) as folder:  # noqa: PT012
            folder.write("config.json", "{}")
            raise RuntimeError
        assert [path.name for path in (tmp_path / "run").iterdir()] == ["config.json"]

    def test_a_name_that_is_too_long(self, tmp_path):
        """The folder around it can be made, and goes again."""
        with (
            pytest.raises(ValueError, match=r"\(File name too long\): make room or choose another folder"),
            RunFolder.create(tmp_path / "runs" / ("x" * 300), silent),
        ):
            pass
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
    def test_a_folder_without_permission(self, tmp_path):
        tmp_path.chmod(0o500)
        with pytest.raises(ValueError, match="cannot write to"), RunFolder.create(tmp_path / "run", silent):
            pass

    def test_a_folder_on_a_read_only_disk(self, tmp_path, monkeypatch):
        def refuse(*args, **options):
            raise OSError(30, os.strerror(30))

        monkeypatch.setattr(os, "open", refuse)
        with (
            pytest.raises(ValueError, match=r"cannot write to .* \(Read-only file system\): make room or choose"),
            RunFolder.create(tmp_path / "run", silent),
        ):
            pass
        assert list(tmp_path.iterdir()) == []


def test_what_killed_writers_left_is_removed(tmp_path):
    left = [tmp_path / ".metrics.jsonl.abc12345.part", tmp_path / ".checkpoint-000001-00.pt._xyz0000.part"]
    others = [tmp_path / ".hidden", tmp_path / ".film.part", tmp_path / "film.12345678.part"]
    for path in (*left, *others):
        path.write_text("half")
    with RunFolder.create(tmp_path, silent):
        pass
    assert not any(path.exists() for path in left)
    assert all(path.exists() for path in others)


def test_a_writer_that_is_killed_leaves_what_remove_unfinished_knows(tmp_path, monkeypatch):
    """The name of a temporary file and the pattern that removes it agree."""
    seen = []
    monkeypatch.setattr(os, "replace", lambda source, target: seen.append(os.path.basename(source)) or os._exit(9))
    child = os.fork()
    if child == 0:
        write_atomically(tmp_path / "metrics.jsonl", "half")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    assert len(list(tmp_path.iterdir())) == 1
    with RunFolder.create(tmp_path, silent):
        pass
    assert list(tmp_path.iterdir()) == []


class TestKilledEarly:
    """What is left of a run that was killed before its first epoch was over."""

    @pytest.fixture
    def begun(self, train, tmp_path, monkeypatch):
        """A run that got no further than its settings."""

        class Killed(BaseException):
            pass

        def kill(*args):
            raise Killed

        with monkeypatch.context() as patch:
            patch.setattr(checkpoints, "save", kill)
            with pytest.raises(Killed):
                train("--epochs", 1, "--out", tmp_path / "run")
        assert {path.name for path in (tmp_path / "run").iterdir()} == {"config.json", "log.txt"}
        return tmp_path / "run"

    def test_it_can_be_resumed(self, begun, capsys):
        assert main(["--resume", str(begun)]) == 0
        assert "there is no checkpoint yet: starting from the beginning" in capsys.readouterr().out
        assert json.loads((begun / "summary.json").read_text())["epochs"] == 1

    def test_it_can_be_started_again_with_other_settings(self, begun, train):
        assert train("--epochs", 2, "--out", begun)[0] == 0
        assert json.loads((begun / "summary.json").read_text())["epochs"] == 2

    def test_a_run_that_has_trained_is_not_overwritten(self, begun, train):
        assert train("--epochs", 1, "--out", begun)[0] == 0
        code, _, complaints = train("--epochs", 1, "--out", begun)
        assert code == 2
        assert "holds a run already" in complaints

    def test_before_its_settings_it_can_be_started(self, train, tmp_path):
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / LOCK).write_text("1\n")
        assert main(["--resume", str(tmp_path / "run")]) == 2
        assert train("--epochs", 1, "--out", tmp_path / "run")[0] == 0


def test_the_first_checkpoint_is_there_before_training(train, tmp_path, monkeypatch):
    """So a run that diverges in its first epoch has a good one."""
    from stdl_engine.trainer import Trainer

    seen = []
    original = Trainer._train
    monkeypatch.setattr(
        Trainer, "_train", lambda self, x, y: seen.append(checkpoints.saved(self.folder.path)) or original(self, x, y)
    )
    train("--epochs", 1, "--out", tmp_path / "run")
    assert checkpoints.batches_of(seen[0][0]) == 0
    assert [checkpoints.batches_of(path) for path in checkpoints.saved(tmp_path / "run")] == [4]


def test_locked_folders_say_what_they_hold(tmp_path):
    class Folder(LockedFolder):
        settings_file, what = "settings.txt", "picnic"

    with pytest.raises(ValueError, match=r"is no folder of a picnic: it has no settings\.txt\.$"):
        Folder.open(tmp_path)
    (tmp_path / "settings.txt").touch()
    with pytest.raises(ValueError, match="holds a picnic already: continue it with --resume"):
        Folder(tmp_path).refuse_if_taken()
