"""What goes wrong in a play, and when: chosen by its seed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from .crew import PACE, Harbour, Member

HOUR = 3_600_000
SLOW = 0.3
"""How likely the store hangs for a process that has bad luck."""


class Faults:
    """Does things to a crew until told to stop."""

    def __init__(
        self, harbour: Harbour, chance: Random, crew: Callable[[], Sequence[Member]]
    ) -> None:
        self._harbour = harbour
        self._chance = chance
        self._crew = crew
        self._over = False
        self.unlocks = False
        """Whether somebody frees mutexes by hand."""
        self._kinds = self._some_of(
            [
                self.kill,
                self.kill_python,
                self.kill_jvm,
                self.stop,
                self.stop_python,
                self.terminate,
                self.jump,
                self.store_away,
                self.store_unsure,
                self.store_slow,
                self.loads_fail,
                self.storm,
                self.silence,
                self.emptied,
            ]
        )

    def _some_of(self, kinds: list[Callable[[], str]]) -> list[Callable[[], str]]:
        """Not all in each play: a few, again and again, go deeper than a bit of everything."""
        return self._chance.sample(kinds, self._chance.randint(2, 5))

    def begin(self, every: float) -> None:
        def strike() -> None:
            if self._over:
                return
            told = self._chance.choice(self._kinds)()
            if told:
                self._harbour.tell(told)
            self._harbour.heap.after(self._chance.expovariate(1 / every), strike)

        self._harbour.heap.after(self._chance.expovariate(1 / every), strike)

    def end(self) -> None:
        """Calm: nothing is lost any more, nobody is stopped."""
        self._over = True
        harbour = self._harbour
        harbour.database.trouble.before = harbour.database.trouble.after = 0.0
        harbour.database.trouble.away_until = 0.0
        for member in self._crew():
            member.process.slow = 0.0
        harbour.sea.fails = 0.0
        weather = harbour.network.weather
        weather.lost, weather.doubled, weather.longest = 0.0, 0.0, 5.0

    def _one(self) -> Member | None:
        living = [member for member in self._crew() if member.process.alive]
        return self._chance.choice(living) if living else None

    def _for_a_while(self, begin: Callable[[], None], end: Callable[[], None]) -> None:
        begin()
        self._harbour.heap.after(self._chance.uniform(300, 4_000), end)

    def kill(self) -> str:
        member = self._one()
        if member is None:
            return ""
        member.kill()
        return f"{member.process.name} is killed"

    def kill_python(self) -> str:
        member = self._one()
        if member is None:
            return ""
        member.process.kill()
        return f"{member.process.name} is killed, its JVM lives on"

    def kill_jvm(self) -> str:
        member = self._one()
        if member is None or not member.jvm.alive:
            return ""
        member.jvm.end()
        return f"the JVM of {member.process.name} dies"

    def stop(self) -> str:
        return self._stop(all_of_it=True)

    def stop_python(self) -> str:
        return self._stop(all_of_it=False)

    def _stop(self, *, all_of_it: bool) -> str:
        member = self._one()
        if member is None:
            return ""
        time = self._chance.choice([0.3, 1.0, 2.5]) * PACE.dead_after * self._chance.uniform(0.5, 1)
        member.stop(time, all_of_it=all_of_it)
        if self.unlocks:
            # Somebody who sees that it hangs takes its topics away.
            self._harbour.heap.after(time * self._chance.uniform(0.1, 0.9), self._unlock)
        what = "stopped" if all_of_it else "stopped but for its JVM"
        return f"{member.process.name} is {what} for {time / 1000:.1f} s"

    def _unlock(self) -> None:
        held = self._harbour.database.ask("SELECT topic FROM offsets WHERE hostid <> ''")
        for (topic,) in held:
            self._harbour.tell(f"{topic} is unlocked by hand")
            self._harbour.operator.blocks.unlock(topic, int(self._harbour.heap.now))

    def terminate(self) -> str:
        member = self._one()
        if member is None or member.process.stopped:
            return ""
        member.life.stop()
        return f"{member.process.name} is told to end"

    def jump(self) -> str:
        member = self._one()
        if member is None:
            return ""
        member.process.skew += self._chance.choice([-HOUR, HOUR, -5_000, 5_000, -500])
        return f"the clock of {member.process.name} is off by {member.process.skew / 1000:g} s now"

    def store_away(self) -> str:
        time = self._chance.uniform(200, PACE.dead_after)
        trouble = self._harbour.database.trouble
        trouble.away_until = max(trouble.away_until, self._harbour.heap.now + time)
        return f"the store is away for {time / 1000:.1f} s"

    def store_unsure(self) -> str:
        trouble = self._harbour.database.trouble
        if trouble.before:
            return ""

        def begin() -> None:
            trouble.before, trouble.after = 0.05, 0.1

        def end() -> None:
            trouble.before = trouble.after = 0.0

        self._for_a_while(begin, end)
        return "the store fails now and then, before and after a commit"

    def store_slow(self) -> str:
        member = self._one()
        if member is None:
            return ""
        process = member.process

        def begin() -> None:
            process.slow = SLOW

        def end() -> None:
            process.slow = 0.0

        self._for_a_while(begin, end)
        return f"the store hangs now and then for {process.name}"

    def loads_fail(self) -> str:
        sea = self._harbour.sea

        def begin() -> None:
            sea.fails = 0.3

        def end() -> None:
            sea.fails = 0.0

        self._for_a_while(begin, end)
        return "loads fail"

    def storm(self) -> str:
        self._weather(0.3, 0.3, 4_000)
        return "messages are lost, doubled and late"

    def silence(self) -> str:
        self._weather(1.0, 0.0, 5)
        return "all messages are lost"

    def _weather(self, lost: float, doubled: float, longest: float) -> None:
        weather = self._harbour.network.weather

        def begin() -> None:
            weather.lost, weather.doubled, weather.longest = lost, doubled, longest

        def end() -> None:
            weather.lost, weather.doubled, weather.longest = 0.0, 0.0, 5.0

        self._for_a_while(begin, end)

    def emptied(self) -> str:
        self._harbour.network.empty()
        return "the topics are emptied"
