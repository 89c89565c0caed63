"""When copies of stages are renewed, and what they hold."""

from collections.abc import Mapping

from skippipe.moves import Holding
from skippipe.train.loop.context import RankContext
from skippipe.train.loop.copies import CopyKeeper, StageCopy
from skippipe.train.loop.optimizer import StageOptimizer
from skippipe.train.loop.transfers import stage_state


class CopyScheduler:
    """Schedules the copies of stages of one run; all ranks call the same methods with the same numbers."""

    def __init__(self, keeper: CopyKeeper | None, context: RankContext, optimizer: StageOptimizer) -> None:
        """Prepare.

        Args:
            keeper: keeps copies of other ranks' stages; None: there are none.
            context: has the stages of this rank.
            optimizer: of these stages.

        """
        self._keeper, self._context, self._optimizer = keeper, context, optimizer
        self._holding = Holding({}, frozenset())

    @property
    def kept(self) -> Mapping[int, StageCopy]:
        """The copies that this rank has."""
        return {} if self._keeper is None else self._keeper.kept

    @property
    def busy(self) -> bool:
        """Whether this rank is still renewing copies."""
        return self._keeper is not None and self._keeper.busy

    def place(self, holding: Holding) -> None:
        """Decide anew who keeps which copies, for who has which weights from now on."""
        self._holding = holding
        if self._keeper is None:
            return
        rank = self._context.rendezvous.rank
        own = [stage for stage in self._context.stages if rank in holding.current.get(stage, ())]
        self._keeper.place(
            holding,
            {
                stage: sum(
                    tensor.nbytes
                    for tensor in stage_state(self._context.stages[stage], self._optimizer, holding.joined)
                )
                for stage in own
            },
        )

    def after(self, iteration: int, *, renewing: bool) -> None:
        """Begin to renew copies after an iteration, if they are due and no rank is still `renewing` them."""
        context, joined = self._context, self._holding.joined
        if self._keeper is not None and iteration < context.spec.iterations:
            self._keeper.after(
                iteration,
                lambda stage: stage_state(context.stages[stage], self._optimizer, joined),
                lambda stage: joined.intersection(context.layers[stage]),
                renewing=renewing,
            )

    def settle(self) -> None:
        """Wait until weights and optimizer state may change; to be called before each step."""
        if self._keeper is not None:
            self._keeper.settle()

    def wait(self) -> None:
        """Wait until no copy is being renewed, so that nobody leaves while another one still sends."""
        if self._keeper is not None:
            self._keeper.wait()
