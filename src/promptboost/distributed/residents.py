"""Objects that stay in processes of an engine and remember: for work that cannot be cut into units."""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from promptboost.distributed.crew import Home, cause_of
from promptboost.distributed.unit import part_of_promptboost
from promptboost.errors import RunError

# Seconds that a resident may take to start while others are there already.
_START = 60.0


class ResidentLostError(Exception):
    """A process has ended, and what its resident remembered is lost."""


class Residents(Protocol):
    """Objects of one class, each in a process of its own."""

    def __len__(self) -> int:
        """Return how many there are."""

    def share(self, value: Any) -> Any:
        """Return what stands for a value among the things that are given to several residents."""

    def ask(self, number: int, call: str, *given: Any) -> Callable[[], Any]:
        """Call a method of one, and return what returns its answer; it raises ResidentLostError.

        Calls of one resident are answered in their order, those of several at once.
        """

    def end(self) -> None:
        """End them."""


class LocalResidents:
    """Residents of this process, which answer at once.

    Examples
    --------
    >>> numbers = LocalResidents([[3, 1, 2]])
    >>> numbers.ask(0, "index", 2)()
    2
    """

    def __init__(self, residents: Sequence[Any]) -> None:
        self._residents = list(residents)

    def __len__(self) -> int:
        return len(self._residents)

    def share(self, value: Any) -> Any:
        """Return the value itself."""
        return value

    def ask(self, number: int, call: str, *given: Any) -> Callable[[], Any]:
        """Call a method at once."""
        answer = getattr(self._residents[number], call)(*given)
        return lambda: answer

    def end(self) -> None:
        """Forget them."""
        self._residents.clear()


class _Room:
    """What lives in an actor: one resident."""

    def __init__(self, part: str, settings: dict[str, Any], threads: int, home: Home) -> None:
        from promptboost.threads import set_threads

        home.enter()
        set_threads(threads)
        self._resident = part_of_promptboost(part)(**settings)

    def lives(self) -> bool:
        """Tell that all is loaded."""
        return True

    def ask(self, call: str, *given: Any) -> Any:
        """Call a method of the resident."""
        return getattr(self._resident, call)(*given)


class RayResidents:
    """Residents in actors of a Ray cluster.

    Parameters
    ----------
    ray : module
    part, settings
        See :meth:`~promptboost.distributed.engine.Engine.residents`.
    wanted : int
        How many. Those that do not start in a minute, while others have, are done without.
    cores : int
        Of each.
    say : callable
        Called with a line for people.
    """

    def __init__(
        self,
        ray: Any,
        part: str,
        settings: dict[str, Any],
        wanted: int,
        cores: int,
        say: Callable[[str], None],
    ) -> None:
        self._ray, self._say = ray, say
        made = ray.remote(_Room).options(num_cpus=cores, max_restarts=0, max_task_retries=0)
        home = Home.here()
        self._actors = [made.remote(part, settings, cores, home) for _ in range(wanted)]
        try:
            self._actors = self._living()
        except BaseException:
            self.end()
            raise

    def __len__(self) -> int:
        return len(self._actors)

    def share(self, value: Any) -> Any:
        """Put a value where all nodes can read it: once, however many residents are given it."""
        return self._ray.put(value)

    def ask(self, number: int, call: str, *given: Any) -> Callable[[], Any]:
        """Call a method of one actor."""
        answer = self._actors[number].ask.remote(call, *given)
        return lambda: self._answer(answer)

    def end(self) -> None:
        """End the actors."""
        for actor in self._actors:
            with contextlib.suppress(Exception):
                self._ray.kill(actor)
        self._actors = []

    def _answer(self, answer: Any) -> Any:
        errors = self._ray.exceptions
        try:
            return self._ray.get(answer)
        except errors.RayTaskError:  # it lives, and has raised
            raise
        except errors.RayError as error:
            self._say(f"lost a worker: {cause_of(error)}")
            raise ResidentLostError(cause_of(error)) from error

    def _living(self) -> list[Any]:
        """Wait for all to start, as long as none has; return those that have, and end the others."""
        asked = {actor.lives.remote(): actor for actor in self._actors}
        ready: list[Any] = []
        while not ready:
            ready, late = self._ray.wait(list(asked), num_returns=len(asked), timeout=_START)
            if not ready:
                self._say(f"no worker has started for {_START:.0f} s; waiting")
        living, problem = [], None
        for one in ready:
            try:
                self._ray.get(one)
                living.append(asked[one])
            except self._ray.exceptions.RayError as error:
                problem = error
        for one in late:
            self._ray.kill(asked[one])
        if not living:
            assert problem is not None
            raise RunError(f"no worker can be started on the cluster: {cause_of(problem)}")
        return living
