"""Brings up everything that is measured: environments, servers, drivers and Pondera."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from engines.tokenizer import ModelTokenizer
from infra.bench.peers.driver import DriverProcess, driver
from infra.bench.peers.pondera import pondera
from infra.bench.peers.processes import idle_shares
from infra.bench.peers.run import Bench
from infra.bench.peers.server import engine, optillm
from infra.bench.peers.sides import Driver
from infra.bench.venvs import environment, packages
from orchestrator.deployment import prepare_model
from orchestrator.settings import Settings

SETTLE_S = 5.0
IDLE_S = 10.0


@asynccontextmanager
async def up(settings: Settings) -> AsyncIterator[tuple[Bench, dict[str, float]]]:
    """Start everything; yields it with the CPU share of each part while nothing is asked.

    Args:
        settings: of our service, with just the model that is measured.

    Raises:
        StartFailed: a peer's server did not start.
        InstallFailed: a peer's environment could not be made.
    """
    state = settings.state_dir.resolve() / "peers"
    logs = state / "logs"
    names = ("its_hub", "optillm", "treequest", "sglang_http")
    its_hub, proxy, treequest, http = (environment(name, state) for name in names)
    (model,) = settings.models
    files = prepare_model(settings, model, lambda _name, _share: None)
    assert files.process_reward is not None
    right, wrong = files.process_reward.labels
    tokenizer = ModelTokenizer(files.path)
    # The peers come first: when our deployment ends it spares what was there before it.
    async with AsyncExitStack() as stack:
        print("starting SGLang's HTTP server, OptiLLM and the drivers", flush=True)
        served = await stack.enter_async_context(engine(model, files.path.absolute(), packages(http), logs))
        proxied = await stack.enter_async_context(optillm(proxy, served.url, logs))
        drivers: dict[Driver, DriverProcess] = {
            "http": await stack.enter_async_context(driver("http", sys.executable, logs)),
            "its_hub": await stack.enter_async_context(driver("its_hub", its_hub, logs)),
            "treequest": await stack.enter_async_context(driver("treequest", treequest, logs)),
        }
        service = await stack.enter_async_context(pondera(settings))
        bench = Bench(
            drivers=drivers,
            engine=served,
            optillm=proxied.url,
            pondera=service,
            render=lambda prompt: tokenizer.render_chat([{"role": "user", "content": prompt}]),
            labels=(tokenizer.token_id(right), tokenizer.token_id(wrong)),
        )
        children = {
            "SGLang's server": [served.pid],
            "OptiLLM": [proxied.pid],
            "drivers": [d.pid for d in drivers.values()],
        }
        await asyncio.sleep(SETTLE_S)
        yield bench, await idle_shares(children, "Pondera with Ray", IDLE_S)
