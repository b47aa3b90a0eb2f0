"""The official clients of the APIs, which `make api-clients` installs. Where they are missing, tests that need them are skipped."""
import glob
import importlib
import sys

from cluster_util import Skip

sys.path += glob.glob("build/clients/lib/python3*/site-packages")


def client_module(name):
    try:
        return importlib.import_module(name)
    except ImportError as e:
        raise Skip(f"{e}; install it with: make api-clients") from e


def openai_client(server, **options):
    return client_module("openai").OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none", max_retries=0, **options)
