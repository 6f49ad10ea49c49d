#!/usr/bin/python3
"""Plays whole lives of pools at random, and compares what they hold with a model outside of them.

    lives.py --seed N --lives N --steps N [--kind KIND] [--only STEPS] [--disk FOLDER] [--memory FOLDER]
             [--keep] [--verbose] [--canary]

A life is made by its seed: which kind of pool it is, and what is done to it, step by step. Programs change folders of
it (program.c), alone and two at once; they, their supervisors, who stands in for these, and commands are killed;
memory is lost; processes of another session folder come; devices go, also beside programs, come back and are replaced;
files are moved, copied and put back. Devices are files, also on a file system that gets full, or block devices;
memory may be that of a small control group.
Whenever all programs have ended, all that was acknowledged must be there, and nothing else. A life that fails is told
step by step, and its seed plays it again. With --canary something is changed behind the model's back, in each of a
few ways and each kind of pool: each must be noticed.

Environment: NACRE (the program), MOUNT (where programs see the pool).
"""

import argparse
import contextlib
import os
import random
import shutil
import subprocess
import sys

from model import Lost
from pool import KINDS, Fault
from steps import Life

CANARIES = {"byte": "bytes, not", "file": "names: missing", "stale": "no state from", "foreign": "foreign"}
# Of pools of disks that hold the same: all of them are written over.
OVER = {"over": ""}


def options():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--lives", type=int, default=1)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--kind", choices=KINDS)
    parser.add_argument("--only", type=lambda names: names.split(","), help="these steps alone, with commas")
    parser.add_argument("--disk", default=os.environ.get("DISK_FOLDER", "."))
    parser.add_argument("--memory", default="/dev/shm")
    parser.add_argument("--keep", action="store_true", help="leave what a life that fails has")
    parser.add_argument("--canary", action="store_true")
    parser.add_argument("--verbose", action="store_true")
    return parser.parse_args()


def compiled(folder):
    program = os.path.join(folder, "lives")
    source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "program.c")
    subprocess.run(["gcc", "-O1", "-Wall", "-Werror", "-o", program, source], check=True)
    return program


def life(program, seed, told, canary=None):
    """What went wrong in a life, or None."""
    one = Life(program, seed, told, canary)
    failure = None
    try:
        one.live()
    except (Lost, Fault) as fault:
        failure = f"{type(fault).__name__}: {fault}"
    if failure and not canary:
        print(f"seed {seed}, a pool of kind {one.pool.kind}:", *one.told, failure, sep="\n  ", flush=True)
    one.leave(keep=failure and told.keep and not canary)
    return failure


def canaries(program, told):
    for kind in [told.kind] if told.kind else KINDS:
        told.kind = kind
        on_disks = KINDS[kind].get("copies") and not KINDS[kind].get("memory")
        for name, sign in (CANARIES | (OVER if on_disks else {})).items():
            failure = life(program, told.seed, told, canary=name)
            if not failure or sign not in failure:
                sys.exit(f"FAILED: the canary '{name}' was not noticed in a pool of kind {kind}: {failure}")
            print(f"-- canary '{name}', {kind}: {failure.splitlines()[0][:90]}", flush=True)


@contextlib.contextmanager
def scratch(told):
    folder = os.path.join(told.memory, f"lives-{os.getpid()}")
    os.mkdir(folder)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def main():
    told = options()
    with scratch(told) as folder:
        program = compiled(folder)
        if told.canary:
            return canaries(program, told)
        failed = [seed for seed in range(told.seed, told.seed + told.lives) if life(program, seed, told)]
    if failed:
        sys.exit(f"FAILED: of {told.lives} lives these: {failed}")
    print(f"-- {told.lives} lives from seed {told.seed} of {told.steps} steps each")


if __name__ == "__main__":
    main()
