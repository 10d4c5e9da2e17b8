"""Show the progress of several runs together: a bar in a terminal, occasional lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

LINE_EVERY = 30.0  # seconds between two lines without a terminal


class SweepProgress:
    """A context manager that shows the progress of all runs together.

    Args:
        console: Console to show the progress on.
        runs: Number of runs to do.
        clock: Function that returns the time in seconds.
    """

    def __init__(self, console: Console, runs: int, clock: Callable[[], float] = time.monotonic):
        self.console = console
        self.runs = runs
        self.clock = clock
        self.started = self.last_line = clock()
        self.done: dict[str, float] = {}
        self.ended = 0
        self.bar = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=None),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self.task = self.bar.add_task(f"0 of {runs} runs", total=runs, left="")

    def __enter__(self) -> SweepProgress:
        self.bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.bar.stop()

    def update(self, run: str, done: float) -> None:
        """Record which share of a run's updates is done."""
        self.done[run] = done
        self._show()

    def end(self, run: str, message: str) -> None:
        """Record that a run has finished or failed, and print a message."""
        self.done[run] = 1.0
        self.ended += 1
        self.console.print(message, markup=False, highlight=False, soft_wrap=True)
        self._show()

    @property
    def left(self) -> str:
        """The estimated time left, in words."""
        done = sum(self.done.values())
        if done < 0.01 * self.runs:  # workers are still starting
            return ""
        seconds = (self.clock() - self.started) * (self.runs - done) / done
        return f"about {seconds / 60:.0f} min left" if seconds >= 90 else f"about {seconds:.0f} s left"

    def _show(self) -> None:
        done = sum(self.done.values())
        counts = f"{self.ended} of {self.runs} runs"
        self.bar.update(self.task, completed=done, description=counts, left=self.left)
        now = self.clock()
        if not self.console.is_terminal and now - self.last_line >= LINE_EVERY and done < self.runs:
            self.last_line = now
            self.console.print(
                f"{done / self.runs:4.0%} of all updates, {counts}, {self.left}",
                highlight=False,
                soft_wrap=True,
            )
