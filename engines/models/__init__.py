"""Small models to begin with: where they come from and how they are put in place."""

from engines.models.catalog import KNOWN_MODELS, ModelFiles, ProcessRewardForm, RewardHeadForm
from engines.models.preparation import ModelPreparationError, Progress, prepare

__all__ = [
    "KNOWN_MODELS",
    "ModelFiles",
    "ModelPreparationError",
    "ProcessRewardForm",
    "Progress",
    "RewardHeadForm",
    "prepare",
]
