"""Sweeps over simulated engines: what runs next, what survives a kill, and whether the right arm wins."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace

import pytest

from ddtree_ops.measure.decide import decision, judge_acceptance
from ddtree_ops.measure.drive import ArmOutcome, carry_out, remaining
from ddtree_ops.measure.record import append_line, mend, read_lines
from ddtree_ops.measure.sweep import (
    Arm,
    ArmFailure,
    ArmKind,
    CellResult,
    State,
    SweepPlan,
    arms,
    next_cell,
    read_state,
)
from ddtree_ops.model.errors import UsageError

GRID = arms([4, 8, 16, 32], [1, 4], [True, False])


def plan(some=GRID, **more):
    return SweepPlan(arms=some, workloads=("code", "poem"), **more)


class Engines:
    """Engines with known speeds on a node whose noise has the shares that were seen on real ones.

    Of the noise's variance 36 % drifts over hours and 36 % lies in the prompts, both of which arms
    share; 25 % is a cell's own and the rest a restart's. Failing arms fail when they are deployed.
    """

    def __init__(self, speeds, *, noise=0.0, seed=0, failures=None):
        self.speeds, self.noise, self.seed = speeds, noise, seed
        self.failures = failures or {}
        self.draw = random.Random(seed)
        self.drift = self.restart = 0.0
        self.deployed, self.deploys, self.cells = None, 0, []

    def deploy_arm(self, arm):
        self.deploys += 1
        self.restart = self.draw.gauss(0, 0.15 * self.noise)
        self.drift = 0.98 * self.drift + self.draw.gauss(0, 0.6 * self.noise * math.sqrt(1 - 0.98**2))
        failure = self.failures.get(arm.id)
        self.deployed = None if failure else arm.id
        return ArmOutcome(arm=arm, seconds=400.0, failure=failure)

    def measure(self, cell):
        assert cell.arm == self.deployed
        self.cells.append(cell)
        prompts = random.Random(f"{self.seed} {cell.workload} {cell.start}").gauss(0, 0.6 * self.noise)
        own = self.draw.gauss(0, 0.5 * self.noise)
        rate = self.speeds[cell.arm] * math.exp(self.drift + self.restart + prompts + own)
        return CellResult(cell=cell, values={"user_rate": rate})


def fast(some=GRID, seed=1):
    """Speeds of a believable engine: chain over plain, trees over chain, eager slow, large trees costly."""
    draw = random.Random(seed)
    chain, eager = draw.uniform(1.2, 3), draw.uniform(0.3, 0.95)
    cost = draw.uniform(0.001, 0.02)

    def speed(arm):
        if arm.kind is not ArmKind.TREE:
            return 1.0 if arm.kind is ArmKind.AUTOREGRESSIVE else chain
        branching = 1 + 0.1 * math.log(arm.topk) if arm.topk > 1 else 0.55
        gain = 0.35 * (1 - math.exp(-arm.budget / 12)) * branching
        return (chain + gain) / (1 + cost * arm.budget) * math.exp(draw.gauss(0, 0.03))

    return {arm.id: 100 * speed(arm) * (1 if arm.graphs else eager) for arm in some}


def test_the_planted_best_wins_with_half_the_restarts():
    """200 sweeps at 5–20 % noise: the best or one within 2 % wins at least 95 %, at half the restarts."""
    right, restarts = 0, []
    for seed in range(200):
        speeds = fast(seed=seed)
        node = Engines(speeds, noise=random.Random(seed).uniform(0.05, 0.20), seed=seed)
        made = carry_out(State(plan=plan()), node, lambda entry: None)
        right += speeds[made.winner.id] >= 0.98 * max(speeds.values())
        restarts.append(node.deploys)
    assert right >= 190
    assert max(restarts) <= len(GRID) * plan().repeats / 2


def test_arms_are_the_grid_and_its_baselines():
    """Four budgets, two caps and two graph modes are sixteen arms; two baselines come first."""
    assert len(GRID) == 18
    assert [arm.id for arm in GRID[:3]] == ["autoregressive", "chain", "4/1"]
    assert GRID[-1].id == "32/4 eager"
    assert plan().baseline == "chain"


def test_a_cap_above_the_budget_is_not_run_twice():
    """Budget 4 with caps 4 and 8 is one arm."""
    assert [arm.id for arm in arms([4], [4, 8], [True], baselines=False)] == ["4/4"]


@pytest.mark.parametrize("axes", [([], [1], [True]), ([0], [1], [True]), ([4], [-1], [True]), ([4], [1], [])])
def test_an_impossible_axis_is_refused(axes):
    """Empty axes and numbers below 1 are usage errors."""
    with pytest.raises(UsageError):
        arms(*axes)


def test_no_cell_runs_twice_and_rounds_are_complete():
    """Every cell of a sweep is different, and each visit has all workloads equally often."""
    node = Engines(fast(), noise=0.1)
    carry_out(State(plan=plan()), node, lambda entry: None)
    assert len(node.cells) == len(set(node.cells))
    by_visit = {}
    for cell in node.cells:
        by_visit.setdefault((cell.arm, cell.round), []).append(cell.workload)
    assert all(names.count("code") == names.count("poem") >= 2 for names in by_visit.values())


def test_arms_are_measured_on_the_same_prompts():
    """Cells of one round and repeat begin at the same place of the workload, whatever the arm."""
    node = Engines(fast(), noise=0.05)
    carry_out(State(plan=plan()), node, lambda entry: None)
    starts = {}
    for cell in node.cells:
        starts.setdefault((cell.workload, cell.round, cell.repeat), set()).add(cell.start)
    assert all(len(found) == 1 for found in starts.values())


def test_failed_arms_are_never_ranked():
    """The fastest arm garbles: it is reported with its diagnosis, and another one wins."""
    speeds = fast() | {"32/4": 9000.0, "4/1": 8000.0}
    failures = {
        "32/4": ArmFailure(arm="32/4", kind="garbled", diagnosis="poem", first_wrong="poem: token 3"),
        "4/1": ArmFailure(arm="4/1", kind="stuck", diagnosis="accept length 1.00"),
    }
    made = carry_out(State(plan=plan()), Engines(speeds, failures=failures), lambda entry: None)
    assert {failure.arm for failure in made.failures} == {"32/4", "4/1"}
    assert not {"32/4", "4/1"} & {ranked.arm.id for ranked in made.ranking}
    assert "Failed and not ranked: 4/1 (stuck), 32/4 (garbled)." in made.sentences


def test_an_arm_that_fails_later_loses_its_rank():
    """Cells measured before an arm broke do not keep it in the race."""
    done = carry_out(State(plan=plan()), Engines(fast()), lambda entry: None)
    results = _recorded(plan(), Engines(fast()))
    broken = ArmFailure(arm=done.winner.id, kind="crash", diagnosis="Watchdog timeout")
    state = State(plan=plan(), results=results, failures={done.winner.id: broken})
    assert decision(state).winner.id != done.winner.id


def _recorded(of, node):
    entries = []
    carry_out(State(plan=of), node, entries.append)
    return read_state(of, json.loads(json.dumps(entries))).results


def test_a_baseline_that_fails_does_not_hold_the_sweep_up():
    """Without the chain the sweep still ends, and compares with nothing that failed."""
    failures = {"chain": ArmFailure(arm="chain", kind="crash", diagnosis="x")}
    node = Engines(fast(), noise=0.05, failures=failures)
    made = carry_out(State(plan=plan()), node, lambda entry: None)
    assert made.final
    assert made.ranking[0].to_baseline is None


def test_all_arms_failing_is_a_decision_too():
    """Nothing to recommend is said in words."""
    failures = {arm.id: ArmFailure(arm=arm.id, kind="crash", diagnosis="x") for arm in GRID}
    made = carry_out(State(plan=plan()), Engines(fast(), failures=failures), lambda entry: None)
    assert (made.winner, made.final) == (None, True)
    assert made.sentences == ("No arm worked: there is nothing to recommend.",)


@pytest.mark.parametrize("seed", range(6))
def test_a_killed_sweep_goes_on_to_the_same_decision(tmp_path, seed):
    """Killed after any number of lines, with the last one torn: no cell twice, same winner."""
    ledger, speeds = tmp_path / "ledger.jsonl", fast()
    whole = carry_out(State(plan=plan()), Engines(speeds), lambda entry: append_line(ledger, entry))
    lines = ledger.read_bytes().splitlines(keepends=True)
    cut = random.Random(seed).randrange(1, len(lines))
    ledger.write_bytes(b"".join(lines[:cut]) + lines[cut][:7])
    mend(ledger)
    state, node = read_state(plan(), read_lines(ledger)), Engines(speeds)
    resumed = carry_out(state, node, lambda entry: append_line(ledger, entry))
    cells = [json.dumps(entry) for entry in read_lines(ledger) if entry["kind"] == "cell"]
    assert len(cells) == len(set(cells))
    assert resumed.winner == whole.winner
    assert [ranked.arm for ranked in resumed.ranking] == [ranked.arm for ranked in whole.ranking]


def test_the_next_cell_depends_on_the_state_alone():
    """Asked twice, it says the same; a finished sweep has none."""
    state = State(plan=plan())
    assert next_cell(state) == next_cell(replace(state))
    assert next_cell(replace(state, results=_recorded(plan(), Engines(fast())))) is None


def test_hopeless_arms_are_dropped_with_the_reason():
    """An arm at a tenth of the speed runs once, and the report says how far behind it was."""
    speeds = fast() | {"8/1 eager": 5.0}
    made = carry_out(State(plan=plan()), Engines(speeds, noise=0.05), lambda entry: None)
    loser = next(ranked for ranked in made.ranking if ranked.arm.id == "8/1 eager")
    assert loser.visits == 1
    assert loser.note.startswith("cannot win: 9")


def test_equal_arms_are_called_equal():
    """Two arms of one speed: no difference is claimed, and the sweep ends by its stop rule."""
    some = arms([8, 16], [4], [True])
    speeds = {"autoregressive": 50.0, "chain": 80.0, "8/4": 120.0, "16/4": 120.0}
    made = carry_out(State(plan=plan(some, repeats=24)), Engines(speeds, noise=0.02), lambda entry: None)
    close = {ranked.arm.id for ranked in made.ranking[:2]}
    assert close == {"8/4", "16/4"}
    assert any(sentence.startswith("No difference shown between") for sentence in made.sentences)
    assert "no other arm can be ahead" in made.stopped


def test_the_decision_is_said_first_with_its_ratio():
    """The first sentences name the arm and what it is worth over the chain."""
    some = arms([8, 16], [4], [True])
    speeds = {"autoregressive": 50.0, "chain": 80.0, "8/4": 120.0, "16/4": 160.0}
    made = carry_out(State(plan=plan(some)), Engines(speeds, noise=0.05), lambda entry: None)
    assert made.sentences[0] == "Run 16/4."
    assert made.sentences[1].startswith("16/4 is faster than chain: ")


def test_accept_length_of_one_is_a_failure():
    """Stuck at 1.0 with speculation on is never ranked; without speculation it is nothing."""
    tree = Arm(kind=ArmKind.TREE, budget=16, topk=4)
    assert judge_acceptance(tree, 1.0).kind == "stuck"
    assert judge_acceptance(tree, 2.0) is None
    assert judge_acceptance(tree, None) is None
    assert judge_acceptance(Arm(kind=ArmKind.AUTOREGRESSIVE), 1.0) is None


def test_remaining_time_follows_this_nodes_own_loads():
    """Before anything ran the default load counts; at the end nothing remains."""
    state = State(plan=plan())
    first = remaining(state, cell_s=30, default_load_s=400)
    assert 18 * 400 < first.least_s < first.most_s
    slow = remaining(replace(state, deploys=(("chain", 900.0),)), cell_s=30, default_load_s=400)
    assert slow.least_s > first.least_s
    ended = replace(state, results=_recorded(plan(), Engines(fast())))
    assert remaining(ended, cell_s=30, default_load_s=400).most_s == 0
