"""Small made-up run folders whose numbers are known; nothing is trained."""

from math import nan
from pathlib import Path

import numpy as np
import pandas as pd

from exor.config import RunConfig
from exor.runs import RunFolder, run_path

STEPS = (0, 100, 200, 300, 400)
FALL = (1.0, 0.5, 0.05, 0.2, 0.01)  # a distance that falls below 10 % twice, the second time for good


def frame(config: RunConfig, scale: float = 1.0) -> pd.DataFrame:
    """Metrics of a run that ends at step 400; distances are ``scale`` times those of FALL, or stay at ``scale``."""
    columns = {"step": STEPS, "loss_train": 1.0, "loss_test": 1.0}
    columns |= {"accuracy_train": (0.0, nan, 0.5, nan, 0.5 + scale / 100), "accuracy_test": 0.25}
    for matrix in ("input", "output"):
        for pair in config.language.pairs:
            name = config.language.pair_name(pair)
            columns[f"{matrix}/{name}"] = scale * (np.array(FALL) if name == "1A-1B" else np.ones(5))
    return pd.DataFrame(columns)


def write(out: Path, config: RunConfig, *, name: str = "made-up", scale: float = 1.0, **summary) -> RunFolder:
    """A run folder with config, metrics and summary."""
    folder = RunFolder(run_path(out, config, name))
    folder.path.mkdir(parents=True)
    folder.write_config(config)
    folder.write("metrics.csv", frame(config, scale).to_csv(index=False))
    folder.write_summary({"state": "finished", "step": 400, "contexts": {"sampled": False}} | summary)
    return folder


def config(seed: int = 1, tied: bool = False, **settings) -> RunConfig:
    """A run of 400 steps."""
    return RunConfig(seed=seed, tied=tied, max_steps=400, **settings)


CSV = frame(config()).to_csv(index=False)
