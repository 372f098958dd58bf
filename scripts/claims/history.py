"""What git knows of the commits that claims name. Without a history, or with a part of it, it says so."""

from __future__ import annotations

import pathlib
import subprocess


class History:
    def __init__(self, root: pathlib.Path) -> None:
        self._root = root
        self._changes: dict[tuple[str, tuple[str, ...]], int] = {}
        self.shallow = self._git("rev-parse", "--is-shallow-repository") == "true"
        top = self._git("rev-parse", "--show-toplevel")
        # An exported tree inside some other repository has no history of its own.
        self.known = top is not None and pathlib.Path(top).resolve() == root.resolve()

    def _git(self, *arguments: str) -> str | None:
        """What git prints, or None where it fails or is not there."""
        try:
            done = subprocess.run(
                ["git", "-C", str(self._root), *arguments], capture_output=True, text=True, check=False
            )
        except OSError:
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    def begins(self) -> str:
        """The day of the oldest commit that is here."""
        days = self._git("log", "--format=%ad", "--date=short", "--reverse") or ""
        return min(days.split(), default="")

    def problem(self, commit: str, date: str) -> tuple[str, bool]:
        """What is wrong with a claim's commit (empty: nothing), and whether that could not be found out."""
        if not self.known:
            return "there is no git history here", True
        if self._git("rev-parse", "--verify", "-q", f"{commit}^{{commit}}") is None:
            if self.shallow:
                return f"commit {commit} is not in this shallow clone", True
            if date < self.begins():
                return f"commit {commit} is older than this history, which begins {self.begins()}", True
            return f"commit {commit} does not exist", False
        if self._git("merge-base", "--is-ancestor", commit, "HEAD") is None:
            if self.shallow:
                return f"commit {commit} is not before HEAD in this shallow clone", True
            return f"commit {commit} is not in the history of HEAD: name the one that was landed", False
        return "", False

    def since(self, commit: str, paths: tuple[str, ...]) -> int:
        """The number of commits after it that have changed the paths."""
        if (commit, paths) not in self._changes:
            log = self._git("log", "--format=%h", f"{commit}..HEAD", "--", *paths)
            self._changes[commit, paths] = len(log.split()) if log else 0
        return self._changes[commit, paths]
