"""The GPU of tests: the plugin of $OD_CUDA_PLUGIN (make gpu-check), else the emulated one, for every program that they start. In
make check-far that plugin is no GPU."""
import os

from cluster_util import BIN, FAR

EMULATED_GPU = os.path.abspath(os.path.join(BIN, "..", "lib", "libod_gpu_host.so"))
PLUGIN = os.path.abspath(os.environ.get("OD_CUDA_PLUGIN") or EMULATED_GPU)
if PLUGIN == FAR["OD_CUDA_PLUGIN"]:
    PLUGIN = EMULATED_GPU
EMULATED = "gpu_host" in os.path.basename(PLUGIN)
os.environ["OD_CUDA_PLUGIN"] = PLUGIN
os.environ.pop("OD_DEVICE", None)  # tests name theirs
