"""Local ("Separate"): each client trains alone; nothing travels.

The baseline of every paper. Scored after training. FedNH's code gives it only R·ρ rounds: a client trains here in the rounds
whose cohort it belongs to, which is that budget.
"""

from hpcfl.communication.message import Message
from hpcfl.fleet import Fleet
from hpcfl.methods.base import Cohort, Method, Setup, State


class Local(Method):
    """Server: nothing. Client: ``model`` [P]. Down 0, up 0."""

    family = "no exchange"
    primary = "post"

    def client_state(self, setup: Setup) -> State:
        return {"model": setup.initial()}

    def send(self, server: State, cohort: Cohort) -> Message:
        return {}

    def update(self, fleet: Fleet, inbox: State) -> Message:
        fleet.score("pre", fleet.state["model"])
        fleet.state["model"] = fleet.train(fleet.state["model"])
        fleet.score("post", fleet.state["model"])
        return {}

    def aggregate(self, server: State, cohort: Cohort, uplink: State) -> None:
        pass

    def observe(self, fleet: Fleet, inbox: State) -> None:
        fleet.score(("pre", "post"), fleet.state["model"])


plugin = Local
