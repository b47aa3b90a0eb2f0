"""The GPU of tests: the plugin of $OD_CUDA_PLUGIN (make gpu-check), else the emulated one, for every program that they start."""
import os

from cluster_util import BIN

PLUGIN = os.path.abspath(os.environ.get("OD_CUDA_PLUGIN") or os.path.join(BIN, "..", "lib", "libod_gpu_host.so"))
EMULATED = "gpu_host" in os.path.basename(PLUGIN)
os.environ["OD_CUDA_PLUGIN"] = PLUGIN
os.environ.pop("OD_DEVICE", None)  # tests name theirs
