"""An iteration of the loop takes in commands and passes on outcomes as long as its share of time lasts."""

from collections import deque
from types import SimpleNamespace

from malamute.errors import StorageFull
from malamute.protocol.messages import Ping
from malamute.server.loop import COSTLY_SECONDS, INTAKE_SECONDS, Loop
from malamute.store.commit import Written


class Intake:
    """A loop without its threads, whose commands take as long and as much work as is said."""

    def __init__(self, commands, seconds=0.0, work=0):
        self.left = [(bytes([n]), Ping()) for n in range(commands)]
        self.now = 0.0
        self.taken = []
        effects = SimpleNamespace(work=1_000)

        def receive(peer, message, now):
            self.taken.append(peer)
            self.now += seconds
            effects.work -= work

        self.effects = effects
        self.loop = Loop.__new__(Loop)
        self.loop.core = SimpleNamespace(effects=effects, receive=receive)
        self.edge = SimpleNamespace(receive=self.receive)
        self.loop.edges = [self.edge]
        self.loop._timer = lambda: self.now

    def receive(self):
        while self.left:
            yield self.left.pop(0)

    def iteration(self):
        self.taken.clear()
        self.effects.work = 1_000
        self.loop._take_in(self.edge, 0.0)
        return len(self.taken)


def test_commands_that_take_no_time_are_taken_in_together():
    assert Intake(200).iteration() == 200


def test_commands_that_take_long_are_spread_over_iterations_and_none_is_left_out():
    seconds = COSTLY_SECONDS * 0.9
    each = int(INTAKE_SECONDS / seconds) + 1
    intake = Intake(2 * each + 1, seconds)
    assert [intake.iteration() for _ in range(4)] == [each, each, 1, 0]


def test_a_costly_command_is_the_last_of_an_iteration():
    intake = Intake(3, seconds=COSTLY_SECONDS * 1.1)
    assert [intake.iteration() for _ in range(4)] == [1, 1, 1, 0]


def test_commands_that_use_up_the_work_end_the_intake():
    intake = Intake(5, work=400)
    assert [intake.iteration() for _ in range(3)] == [3, 2, 0]


class Outcomes:
    """A loop without its threads, whose core takes as long for the outcome of an append as is said."""

    def __init__(self, *written, seconds=0.0):
        self.now = 0.0
        self.passed_on = []

        def stored(token, now):
            self.passed_on.append(token)
            self.now += seconds

        def store_failed(token, error, now):
            self.passed_on.append((token, error))
            self.now += seconds

        self.loop = Loop.__new__(Loop)
        self.loop.core = SimpleNamespace(
            stored=stored, store_failed=store_failed, next_deadline=lambda: float("inf")
        )
        self.loop._results = SimpleNamespace(done=deque(written))
        self.loop._settling = deque()
        self.loop._timer = lambda: self.now
        self.errors = []
        self.loop._on_store_error = lambda error: self.errors.append(error)
        self.loop._again = False

    def iteration(self):
        self.passed_on.clear()
        self.loop._handle_results(0.0)
        return [*self.passed_on]


def test_the_outcomes_of_a_commit_of_very_many_appends_are_spread_over_iterations_in_order():
    outcomes = Outcomes(Written([1, 2, 3, 4, 5]), Written([6]), seconds=INTAKE_SECONDS * 0.4)
    assert outcomes.iteration() == [1, 2, 3]
    assert outcomes.loop._timeout_ms(0.0) == 0
    assert outcomes.iteration() == [4, 5, 6]
    assert outcomes.iteration() == []


def test_a_commit_that_failed_is_reported_once_and_each_of_its_appends_fails():
    error = StorageFull("the disk is full")
    outcomes = Outcomes(Written([1, 2], error))
    assert outcomes.iteration() == [(1, error), (2, error)]
    assert outcomes.errors == [error]
