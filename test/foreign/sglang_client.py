"""Starts SGLang's bench_serving, unmodified, where torch is a build for CPUs. Run by the interpreter of its venv.

The wheel imports torchvision, and torchvision describes two native operators that its build for CUDA cannot load beside
such a torch. They are declared here, without an implementation, so that the import goes through; a text benchmark calls
neither.
"""

import runpy
import sys

import torch

MODULE = "sglang.bench_serving"

if torch.version.cuda is None:
    operators = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        operators.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
sys.argv = [MODULE, *sys.argv[1:]]
runpy.run_module(MODULE, run_name="__main__", alter_sys=True)
