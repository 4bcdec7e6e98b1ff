"""From a search that has ended to its outcome and receipt."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict

from orchestrator.errors import QueryError
from orchestrator.outcome import BROKEN, Outcome, failure
from orchestrator.plan import Plan
from orchestrator.receipt import Receipt, fixed_n_tokens, lines, settled, status_of
from orchestrator.request import ReasonRequest
from orchestrator.runner import SearchRun
from search.contract import Branch, Candidate
from search.log import Recorder
from search.tree import Tree

_CUT = ("stopped", "failed", "truncated")


def conclude(
    request: ReasonRequest, plan: Plan, run: SearchRun, search: Recorder, search_id: str, elapsed_s: float
) -> Outcome:
    """The outcome of a run that has ended, all its calls included.

    Args:
        elapsed_s: seconds since the query was admitted.
    """
    stop_reason = run.stop_reason or search.stop_reason or "unknown"
    candidate = search.best()
    if candidate is not None and not candidate.complete and stop_reason in BROKEN:
        candidate = None
    branches = settled(search.branches(), candidate, stop_reason)
    status = status_of(candidate, cut=run.stop_reason is not None)
    receipt = Receipt(
        search_id=search_id,
        model=request.model,
        technique=plan.technique.name,
        params=asdict(plan.params),
        why=plan.why,
        seed=plan.seed,
        status=status,
        stop_reason=stop_reason,
        tokens=run.meter.count(),
        cap=plan.cap,
        fixed_n_tokens=fixed_n_tokens(plan, search, _ended(branches)),
        generate_calls=run.meter.generate_calls,
        verifier_calls=run.meter.verifier_calls,
        failed_calls=run.meter.failed_calls,
        failures=tuple(dict.fromkeys(run.account.failures)),
        disagreements=run.account.disagreements,
        late_calls=run.account.late_calls,
        fates=dict(Counter(b.fate for b in branches)),
        listed=lines(branches),
        support=candidate.support if candidate else None,
        tie=candidate.tie if candidate else False,
        elapsed_ms=round(elapsed_s * 1000),
    )
    tree = search.tree
    return Outcome(
        status=status,
        text=tree.path_text(candidate.node, candidate.begin) if candidate else "",
        answer=candidate.answer if candidate else None,
        complete=candidate.complete if candidate else False,
        answer_tokens=_written(tree, candidate) if candidate else 0,
        receipt=receipt,
        error=None if candidate else _failure(request, run, stop_reason),
        log="\n".join(search.log.to_lines()) + "\n" if request.keep_log else None,
    )


def _failure(request: ReasonRequest, run: SearchRun, stop_reason: str) -> QueryError:
    return failure(
        request.model,
        stop_reason,
        engine_lost=run.account.engine_lost,
        refused=run.account.refused,
        reasons=run.account.failures,
    )


def _written(tree: Tree, candidate: Candidate) -> int:
    """Tokens of the answer's text that the model wrote."""
    nodes = (tree[n] for n in tree.path_after(candidate.begin, candidate.node))
    return sum(len(node.token_ids) for node in nodes if not node.given)


def _ended(branches: list[Branch]) -> list[Branch]:
    return [b for b in branches if b.fate not in _CUT]
