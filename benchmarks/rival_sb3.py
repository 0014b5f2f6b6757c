"""Stable-Baselines3 with CleanRL's hyperparameters on CartPole, as bench_agents.py runs it.

    python benchmarks/rival_sb3.py dqn|ppo STEPS SEED FOLDER

Event files are written, as the other sides do.
"""

from __future__ import annotations

import sys

import torch
from stable_baselines3 import DQN, PPO


def main(algorithm: str, steps: int, seed: int, folder: str) -> None:
    """Train once."""
    torch.set_num_threads(1)
    common = {"env": "CartPole-v1", "seed": seed, "tensorboard_log": folder, "device": "cpu"}
    if algorithm == "dqn":
        model = DQN(
            "MlpPolicy", learning_rate=2.5e-4, buffer_size=10_000, learning_starts=10_000,
            batch_size=128, tau=1.0, gamma=0.99, train_freq=10, target_update_interval=500,
            exploration_fraction=0.5, exploration_final_eps=0.05,
            policy_kwargs={"net_arch": [120, 84]}, **common,
        )  # fmt: skip
    else:
        model = PPO(
            "MlpPolicy", learning_rate=lambda left: 2.5e-4 * left, n_steps=128, batch_size=128,
            n_epochs=4, gamma=0.99, gae_lambda=0.95, clip_range=0.2, ent_coef=0.01, vf_coef=0.5,
            max_grad_norm=0.5, **{**common, "env": vectorised(seed)},
        )  # fmt: skip
    model.learn(steps)


def vectorised(seed: int) -> object:
    """Four environments, as CleanRL's."""
    from stable_baselines3.common.env_util import make_vec_env

    return make_vec_env("CartPole-v1", n_envs=4, seed=seed)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
