"""Local ("Separate"): each client trains alone, without communication.

This is the baseline of every paper, scored after training. A client trains in the
rounds whose cohort includes it. FedNH's code gives it R·ρ rounds, a client's average
number with a fraction ρ of the clients in each of R rounds. There the rounds of a
client are numbered 1 to R·ρ, also for the learning rate, as here in R·ρ rounds of all
clients.
"""

from torch import Tensor

from hpcfl.methods.base import (
    UNWEIGHTED,
    Audience,
    Cohort,
    Fleet,
    Inbox,
    Message,
    Method,
    State,
)


class Local(Method):
    """State and traffic of Local.

    Server: none. Client: ``model`` [P]. Down 0, up 0.
    """

    family = "no exchange"
    readers = UNWEIGHTED
    primary = "post"
    client_models = ("model",)

    def send(self, server: State, audience: Audience) -> Message:
        return {}

    def start(self, fleet: Fleet, inbox: Inbox) -> Tensor:
        return fleet.state["model"]

    def update(self, fleet: Fleet, inbox: Inbox) -> Message:
        start = self.start(fleet, inbox)
        self.score(fleet, inbox, start)
        fleet.state["model"] = fleet.train(start)
        self.score(fleet, inbox, fleet.state["model"], trained=True)
        return {}

    def aggregate(self, server: State, cohort: Cohort, uplink: State) -> None:
        pass


plugin = Local
