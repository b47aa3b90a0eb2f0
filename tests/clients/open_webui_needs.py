"""Prints what Open WebUI needs, but for models that run in its own process: their libraries load only when such a model is used."""
import importlib.metadata
import re

LOCAL_MODELS = {"accelerate", "einops", "faster-whisper", "opencv-python-headless", "rapidocr", "sentence-transformers", "soundfile",
                "transformers"}

for need in importlib.metadata.requires("open-webui"):
    if "extra ==" not in need and re.match(r"[\w.-]+", need).group() not in LOCAL_MODELS:
        print(need)
